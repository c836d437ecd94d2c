"""What ops and sources have in common: they are data, which travels as a map of plain values."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from prepserver.pipeline.errors import SpecError

Role = Literal["op", "source"]
FILE: Literal["file"] = "file"

Codes = Mapping[tuple[Role | Literal["file"], str], str]
"""The digests of plug-ins that are loaded, by role and name, and of files that ops read, by `FILE` and path."""


class Spec:
    """A frozen dataclass of plain values. Its `__init__` keeps their canonical form, so equal meaning is equal data.

    Attributes:
        wire_key: The key of the class's name on the wire.
    """

    __slots__ = ()
    wire_key: ClassVar[str]

    def _keep(self, **values: object) -> None:
        """Set the fields of a frozen record, from within `__init__` only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def with_code(self, codes: Codes) -> Self:
        """Return the spec with the digest of its plug-in's code, or of the file that it reads; most have neither.

        Raises:
            SpecError: The plug-in is not loaded, or its code, or the file, is not the one that the spec names.
        """
        return self

    def to_wire(self) -> dict[str, Any]:
        """Return a map of plain values: the class's name under `wire_key`, every parameter, tuples as lists."""
        wire: dict[str, Any] = {self.wire_key: type(self).__name__}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            wire[field.name] = _plain(getattr(self, field.name))
        return wire

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Build the spec from named parameters that came over the wire.

        Raises:
            SpecError: A parameter is unknown, missing or wrong.
        """
        known = inspect.signature(cls).parameters
        for name, value in params.items():
            if name not in known:
                raise SpecError(name, value, f"{cls.__name__} has no such parameter; it has: {', '.join(known)}")
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in params:
                raise SpecError(name, None, f"{cls.__name__} needs it")
        return cls(**params)


def _plain(value: object) -> object:
    if isinstance(value, Spec):
        return value.to_wire()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def digest_of(wire: object) -> str:
    """Return the hex SHA-256 of a wire form: equal for equal specs, in any process."""
    canonical = json.dumps(wire, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
