"""The base of ops and sources: data that travels as a map of plain values."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError
from typing import Any, ClassVar, Literal, Self

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.urls import is_url

Role = Literal["op", "source"]
FILE: Literal["file"] = "file"

Codes = Mapping[tuple[Role | Literal["file"], str], str]
"""The digests of plug-ins that are loaded, by role and name, and of files that ops read, by `FILE` and path."""


class Spec:
    """A frozen record of plain values, equal to another one of its class with the same values.

    Its `__init__` sets each attribute once, to the canonical form of a parameter, so equal meaning is equal data; one
    that is not allowed raises `SpecError`, whose field is the parameter. An attribute that is no parameter is declared
    in the class. (A dataclass would name each parameter three times, because `__init__` takes other types than it
    keeps.)
    """

    wire_key: ClassVar[str]  # the key of the class's name on the wire
    paths: ClassVar[tuple[str, ...]] = ()  # parameters that may be paths on the daemon's machine
    # Only what is None by default may be missing on the wire: another release may have other defaults.
    needs_defaults: ClassVar[bool] = False
    # Parameters that are not on the wire with these values: specs of earlier releases keep their digests.
    unwritten: ClassVar[tuple[tuple[str, object], ...]] = ()

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        # mypy takes the hash of its objects for that of the class
        if name not in _attributes(type(self)):  # type: ignore[arg-type]
            reason = f"{name!r} is no parameter of {type(self).__name__}: declare the attribute in the class"
            raise FrozenInstanceError(reason)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return vars(other) == vars(self) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def replaced(self, **values: object) -> Self:
        """Return a copy with other values, unchecked."""
        found = copy.copy(self)
        vars(found).update(values)
        return found

    def with_code(self, codes: Codes) -> Self:
        """Return the spec with the digest of its plug-in's code, or of the file that it reads; most have neither.

        Raises:
            SpecError: The plug-in is not loaded, or its code, or the file, is not the one that the spec names.
        """
        return self

    def to_wire(self) -> dict[str, Any]:
        """Return a map of plain values: the class's name under `wire_key`, parameters by name, tuples as lists."""
        written = (each for each in vars(self).items() if each not in self.unwritten)
        return {self.wire_key: type(self).__name__} | {name: _plain(value) for name, value in written}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Build the spec from a message with absolute paths; raises `SpecError` if one is unknown, missing or wrong."""
        check_absolute(cls.paths, params)
        known = inspect.signature(cls).parameters
        for name, value in params.items():
            if name not in known:
                raise SpecError(name, value, f"{cls.__name__} has no such parameter; it has: {', '.join(known)}")
        for name, parameter in known.items():
            may_be_missing = (
                parameter.default is None if cls.needs_defaults else parameter.default is not parameter.empty
            )
            if name not in params and not may_be_missing:
                raise SpecError(name, None, f"{cls.__name__} needs it")
        return cls(**params)


def paths_of(value: Any) -> list[Any]:
    """Return the paths that a parameter names: one, a list, or none."""
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def check_absolute(names: Sequence[str], params: Mapping[str, Any]) -> None:
    """Raise `SpecError` unless all paths among the named parameters are absolute."""
    for name in names:
        for path in paths_of(params.get(name)):
            if isinstance(path, str) and not (path.startswith("/") or is_url(path)):
                raise SpecError(name, path, "must be an absolute path, because the server runs in another directory")


@functools.cache
def _attributes(spec: type[Spec]) -> frozenset[str]:
    """Return what `__init__` may set: the parameters, and declared attributes."""
    declared = (each for cls in spec.__mro__ for each in inspect.get_annotations(cls).items())
    return frozenset(inspect.signature(spec).parameters) | {
        name for name, kind in declared if "ClassVar" not in str(kind)
    }


def _plain(value: object) -> object:
    if isinstance(value, Spec):
        return value.to_wire()
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def digest_of(wire: object) -> str:
    """Return the hex SHA-256 of a wire form: equal for equal specs, in any process."""
    canonical = json.dumps(wire, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
