"""Where the samples come from, as data: the source part of a spec.

A spec names a dataset and opens nothing: the client builds it, it travels as a map of plain values, and the
daemon checks it again on arrival. `prepserver.source` gives it life. Field names on the wire are the
parameter names; `source` names the kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from prepserver.pipeline.checks import integer
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.record import IMAGES, Record

_MAX_SAMPLES = 1 << 40
_MAX_CLASSES = 1 << 31
_MAX_SIDE = 4096


class _Spec:
    """What the sources have in common: the wire form and its digest."""

    kind: ClassVar[str]

    @property
    def columns(self) -> Record:
        """What each sample holds, by name."""
        return IMAGES

    def to_wire(self) -> dict[str, Any]:
        """The spec as a map of plain values, with the kind under ``source``."""
        wire: dict[str, Any] = {"source": self.kind}
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            wire[field.name] = list(value) if isinstance(value, tuple) else value
        return wire

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the canonical wire form: equal for equal specs, in any process."""
        canonical = json.dumps(self.to_wire(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class ImageFolder(_Spec):
    """Images in one folder per class: ``root/<class>/.../<image>``, as torchvision's ImageFolder.

    Classes are the sorted names of the folders directly under the root; images lie anywhere below a class
    folder, and links are followed.

    Attributes:
        root: Absolute path of the folder that holds the class folders, on the server's machine.

    Raises:
        SpecError: root is not an absolute path.
    """

    kind: ClassVar[str] = "ImageFolder"
    root: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", _absolute("root", self.root))


@dataclass(frozen=True)
class FileList(_Spec):
    """Images named by a list: text lines ``path label``, or CSV (a name that ends in .csv) ``path,label``.

    Attributes:
        path: Absolute path of the list file, on the server's machine. The paths inside are relative to the
            folder of the list file, or absolute.

    Raises:
        SpecError: path is not an absolute path.
    """

    kind: ClassVar[str] = "FileList"
    path: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _absolute("path", self.path))


@dataclass(frozen=True)
class SyntheticImages(_Spec):
    """Procedural JPEGs with the statistics of photos, to try everything without a dataset.

    Attributes:
        n: Number of samples, 1 .. 2**40.
        size: (height, width) in pixels, or one number for both; 1 .. 4096. The default is the median size of
            ImageNet.
        seed: 0 .. 2**63 - 1. A sample is a function of the seed and its index.
        num_classes: Labels are spread over range(num_classes); 1 .. 2**31.

    Raises:
        SpecError: A parameter is out of range.
    """

    kind: ClassVar[str] = "SyntheticImages"
    n: int
    size: tuple[int, int] | int = (375, 500)
    seed: int = 0
    num_classes: int = 1000

    def __post_init__(self) -> None:
        size: object = self.size
        sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
        if len(sides) != 2:
            raise SpecError("size", size, "must be (height, width) or one integer for both")
        for name, value in (
            ("n", integer("n", self.n, 1, _MAX_SAMPLES)),
            ("seed", integer("seed", self.seed, 0, (1 << 63) - 1)),
            ("num_classes", integer("num_classes", self.num_classes, 1, _MAX_CLASSES)),
            ("size", tuple(integer("size", side, 1, _MAX_SIDE) for side in sides)),
        ):
            object.__setattr__(self, name, value)

    @property
    def height(self) -> int:
        """Height of every image in pixels."""
        return self.size[0] if isinstance(self.size, tuple) else self.size

    @property
    def width(self) -> int:
        """Width of every image in pixels."""
        return self.size[1] if isinstance(self.size, tuple) else self.size


@dataclass(frozen=True)
class Packed(_Spec):
    """A dataset that ``prepserver pack`` has made of another one.

    Samples, labels, classes, order and names are those of the dataset that was packed.

    Attributes:
        root: Absolute path of its folder, on the server's machine.

    Raises:
        SpecError: root is not an absolute path.
    """

    kind: ClassVar[str] = "Packed"
    root: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", _absolute("root", self.root))


SourceSpec = ImageFolder | FileList | SyntheticImages | Packed

_KINDS: dict[str, type[ImageFolder] | type[FileList] | type[SyntheticImages] | type[Packed]] = {
    cls.kind: cls for cls in (ImageFolder, FileList, SyntheticImages, Packed)
}


def source_from_wire(wire: object) -> SourceSpec:
    """Build the spec that a map describes.

    Args:
        wire: What `to_wire` gave, or anything at all: it comes from a socket.

    Raises:
        SpecError: Not a map, an unknown kind, an unknown or missing field, or a bad value. The error's field
            begins with ``source``.
    """
    if not isinstance(wire, Mapping):
        raise SpecError("source", wire, "must be a map that names its kind under 'source'")
    kind = wire.get("source")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise SpecError("source.source", kind, f"unknown kind of source; known: {', '.join(_KINDS)}")
    known = {field.name for field in fields(cls)}
    for name, value in wire.items():
        if name != "source" and name not in known:
            raise SpecError(
                f"source.{name}", value, f"{cls.kind} has no such field; it has: {', '.join(sorted(known))}"
            )
    # A spec on the wire is complete: a default that changed between two releases must not change a dataset.
    for name in sorted(known - wire.keys()):
        raise SpecError(f"source.{name}", None, f"{cls.kind} needs this field")
    try:
        return cls(**{name: wire[name] for name in known})
    except SpecError as error:
        raise SpecError(f"source.{error.field}", error.value, error.reason) from None


def _absolute(field: str, value: object) -> str:
    """Check a path and bring it to one spelling, so that `/data/` and `/data` are one source.

    ``..`` stays: what it means depends on links that only the server sees.
    """
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if not isinstance(value, str) or not value:
        raise SpecError(field, value, "must be a path")
    if not value.startswith("/"):
        raise SpecError(field, value, "must be an absolute path, because the server runs in another directory")
    if "\0" in value:
        raise SpecError(field, value, "must not hold a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Names below the root may be any bytes; the root itself travels in a message as text.
        raise SpecError(field, value, "must be valid UTF-8; give the folder a UTF-8 name or a link") from None
    return "/" + "/".join(part for part in value.split("/") if part not in ("", "."))
