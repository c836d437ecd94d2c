"""What every source has in common: a wire form, its digest, the columns of its samples, and the paths it names.

A spec names a dataset and opens nothing: the client builds it, it travels as a map of plain values, and the daemon
checks it again on arrival. `prepserver.source` gives it life. Field names on the wire are the parameter names; `source`
names the kind.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Protocol, Self

from prepserver.pipeline.declared import Codes
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.record import IMAGES, Record


class PathLike(Protocol):
    """A path object, such as pathlib's."""

    def __fspath__(self) -> str: ...


class SourceSpec:
    """A dataset, as data. Subclasses are frozen dataclasses.

    Attributes:
        paths: Parameters that are paths on the daemon's machine: they do not count for what the dataset holds.
    """

    paths: ClassVar[tuple[str, ...]] = ()

    @property
    def columns(self) -> Record:
        """What each sample holds, by name."""
        return IMAGES

    @property
    def place(self) -> str:
        """Where it lies, or what it is if it lies nowhere; for people."""
        return str(getattr(self, self.paths[0])) if self.paths else type(self).__name__

    def to_wire(self) -> dict[str, Any]:
        """The spec as a map of plain values, with the kind under ``source``; what is not asked for is left out."""
        wire: dict[str, Any] = {"source": type(self).__name__}
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            if value is not None:
                wire[field.name] = list(value) if isinstance(value, tuple) else value
        return wire

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Build the spec from named parameters that came over the wire.

        Raises:
            SpecError: One is unknown, missing or wrong.
        """
        known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]  # as above
        for name, value in params.items():
            if name not in known:
                raise SpecError(name, value, f"{cls.__name__} has no such field; it has: {', '.join(sorted(known))}")
            if name in cls.paths and not (isinstance(value, str) and value.startswith("/")):
                raise SpecError(name, value, "must be an absolute path, because the server runs in another directory")
        # A spec on the wire is complete: a default that changed between two releases must not change a dataset.
        for name, field in sorted(known.items()):
            if name not in params and (field.default is MISSING or field.default is not None):
                raise SpecError(name, None, f"{cls.__name__} needs this field")
        return cls(**params)

    def with_code(self, codes: Codes) -> Self:
        """The spec with the digest of the code that reads it, where that is a plug-in's.

        Raises:
            SpecError: The plug-in is not loaded, or has other code.
        """
        return self

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the canonical wire form: equal for equal specs, in any process."""
        canonical = json.dumps(self.to_wire(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _keep(self, **values: object) -> None:
        """Set the fields of a frozen record, from within `__init__` only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def absolute(field: str, value: object) -> str:
    """Return a path in one spelling, absolute, so that `/data/`, `/data` and `data` seen from `/` are one source.

    ``..`` stays in what was absolute: what it means depends on links that only the server sees.

    Raises:
        SpecError: No path, or one that cannot travel in a message.
    """
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if not isinstance(value, str) or not value:
        raise SpecError(field, value, "must be a path")
    if "\0" in value:
        raise SpecError(field, value, "must not hold a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Names below the root may be any bytes; the root itself travels in a message as text.
        raise SpecError(field, value, "must be valid UTF-8; give the folder a UTF-8 name or a link") from None
    if not value.startswith("/"):
        value = posixpath.abspath(posixpath.expanduser(value))  # of the user's directory: the one look outside
    return "/" + "/".join(part for part in value.split("/") if part not in ("", "."))
