"""The kinds of data that a column of a record may hold, and what is known of a value before any sample is seen.

A source declares a kind for each of its columns; each op turns what is known before it into what is known after it.
What is left at the end decides the fields of a row, so a kind whose values still differ in size from sample to sample
cannot be stored: it says which op would give it one size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from prepserver.pipeline.errors import SpecError

ITEM_BYTES = {"uint8": 1, "float16": 2, "float32": 4, "int64": 8}
"""Element types that a row can hold, and their size."""

Size = tuple[int, int]
Stored = tuple[tuple[int, ...], str]
"""Shape and element type of a value in a row."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One column's values.

    Attributes:
        is_spatial: Ops that move pixels move its values too, and every view has values of its own.
        blank: What fills a row that holds no sample.
    """

    is_spatial: ClassVar[bool] = False
    blank: ClassVar[int] = 0

    def stored(self) -> Stored:
        """Shape and element type in a row.

        Raises:
            SpecError: They differ from sample to sample.
        """
        raise SpecError("kind", type(self).__name__, self._way_out)

    @property
    def _way_out(self) -> str:
        return "its values have no fixed size and no op gives them one: leave the column out"


@dataclass(frozen=True, slots=True)
class Spatial(Kind):
    """What lies on a plane of pixels.

    Attributes:
        size: (height, width) of the plane in pixels; None where it differs from sample to sample.
    """

    is_spatial: ClassVar[bool] = True
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class Image(Spatial):
    """Pixels with colours.

    Attributes:
        channels: 3, or 1 after `Grayscale(1)`.
        dtype: Name of the element type: uint8, float16 or float32.
        layout: "CHW" or "HWC" once `ToLayout` has said so, else None: stored as HWC, seen as CHW.
        top: Greatest value that a pixel may have; None once `Normalize` has moved them.
    """

    channels: int = 3
    dtype: str = "uint8"
    layout: str | None = None
    top: float | None = 255.0

    def need_uint8(self, op: object) -> None:
        """Refuse an op that mixes pixel values once they are no longer bytes.

        Raises:
            SpecError: the image is floating point here.
        """
        if self.dtype != "uint8":
            raise SpecError("op", type(op).__name__, "works on uint8: put it before ToDtype")

    def stored(self) -> Stored:
        """(H, W, C), or (C, H, W) after `ToLayout("CHW")`."""
        if self.size is None:
            raise SpecError("kind", "Image", self._way_out)
        shape = (self.channels, *self.size) if self.layout == "CHW" else (*self.size, self.channels)
        return shape, self.dtype

    @property
    def _way_out(self) -> str:
        return (
            "rows would differ in shape from sample to sample: end with CenterCrop(size), RandomCrop(size), "
            "RandomResizedCrop(size) or Resize((height, width))"
        )


@dataclass(frozen=True, slots=True)
class Mask(Spatial):
    """A class number for each pixel of an image; resized by the nearest pixel, never mixed."""

    def stored(self) -> Stored:
        """(H, W), uint8."""
        if self.size is None:
            raise SpecError("kind", "Mask", Image()._way_out)
        return self.size, "uint8"


@dataclass(frozen=True, slots=True)
class Boxes(Spatial):
    """Rectangles on an image: (left, top, right, bottom) in pixels.

    Attributes:
        count: How many fit in a row; None while it differs from sample to sample.
    """

    count: int | None = None

    def stored(self) -> Stored:
        """(count, 4), float32."""
        return _counted(self, self.count, (4,))


@dataclass(frozen=True, slots=True)
class Keypoints(Spatial):
    """Points on an image: (x, y) in pixels, and how visible each is.

    Attributes:
        count: How many fit in a row; None while it differs from sample to sample.
    """

    count: int | None = None

    def stored(self) -> Stored:
        """(count, 3), float32."""
        return _counted(self, self.count, (3,))


@dataclass(frozen=True, slots=True)
class Label(Kind):
    """The number of a class, int64."""

    blank: ClassVar[int] = -1

    def stored(self) -> Stored:
        """A scalar, int64."""
        return (), "int64"


@dataclass(frozen=True, slots=True)
class Scalar(Kind):
    """One number.

    Attributes:
        dtype: Of `ITEM_BYTES`.
    """

    dtype: str = "float32"

    def stored(self) -> Stored:
        """A scalar of its type."""
        return (), self.dtype


@dataclass(frozen=True, slots=True)
class Index(Kind):
    """The place of the sample in its source, int64: the column ``index`` of every record."""

    blank: ClassVar[int] = -1

    def stored(self) -> Stored:
        """A scalar, int64."""
        return (), "int64"


@dataclass(frozen=True, slots=True)
class Array(Kind):
    """Numbers of one shape.

    Attributes:
        shape: None where it differs from sample to sample.
        dtype: Of `ITEM_BYTES`.
    """

    shape: tuple[int, ...] | None = None
    dtype: str = "float32"

    def stored(self) -> Stored:
        """As it is."""
        if self.shape is None:
            raise SpecError("kind", "Array", self._way_out)
        return self.shape, self.dtype


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Characters of any number."""


@dataclass(frozen=True, slots=True)
class Bytes(Kind):
    """Bytes of any number, meaning nothing to prepserver."""


@dataclass(frozen=True, slots=True)
class Tokens(Kind):
    """Numbers of words or parts of words, int64.

    Attributes:
        count: How many fit in a row; None while it differs from sample to sample.
    """

    count: int | None = field(default=None)

    def stored(self) -> Stored:
        """(count,), int64."""
        if self.count is None:
            raise SpecError("kind", "Tokens", self._way_out)
        return (self.count,), "int64"


def _counted(kind: Kind, count: int | None, each: tuple[int, ...]) -> Stored:
    if count is None:
        raise SpecError("kind", type(kind).__name__, kind._way_out)
    return (count, *each), "float32"
