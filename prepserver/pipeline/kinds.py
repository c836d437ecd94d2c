"""The kinds of data that a column of a record may hold, and what is known of a value before any sample is read.

A source declares a kind for each of its columns; each op turns what is known before it into what is known after it.
The kinds after the last op decide the fields of a row. A kind whose values still differ in size from sample to sample
cannot be stored: its error names the op that would give it one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from prepserver.pipeline.errors import SpecError

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""Element types that a row can hold, and their size: those that numpy and torch have in common."""

NO_LABEL = -100
"""The label of a token that torch's losses ignore."""

Size = tuple[int, int]
Shape = tuple[int, ...]

_CROP = (
    "rows would differ in shape from sample to sample: end with CenterCrop(size), RandomCrop(size), "
    "RandomResizedCrop(size) or Resize((height, width))"
)
_PAD_BOXES = (
    "the number of boxes differs from sample to sample: add PadBoxes(n), with the most boxes that a row may have "
    "(PadBoxes(1) where fields= leaves boxes out: rows hold all columns, for other jobs)"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One column's values.

    Attributes:
        is_spatial: The values lie on a plane of pixels: ops that move pixels change them, and every view has its own.
    """

    is_spatial: ClassVar[bool] = False
    _remedy: ClassVar[str] = (
        "its values have no fixed size: declare it, or a PluginOp with returns= gives them one, or leave the column out"
    )

    @property
    def blank(self) -> float:
        """What fills a row that holds no sample."""
        return 0

    @property
    def is_per_box(self) -> bool:
        """Whether there is a value for each of the record's boxes, which stays with its box."""
        return False

    @property
    def may_be_missing(self) -> bool:
        """Whether a sample may lack the value; otherwise such a sample is bad."""
        return getattr(self, "missing", None) is not None

    def stored(self) -> tuple[Shape, str]:
        """Return shape and element type in a row; raises `SpecError` if they differ from sample to sample."""
        shape, dtype = self._in_row()
        if shape is None:
            raise SpecError("kind", type(self).__name__, self._remedy)
        return shape, dtype

    def _in_row(self) -> tuple[Shape | None, str]:
        return None, ""


@dataclass(frozen=True, slots=True)
class Spatial(Kind):
    """Values on a plane of pixels.

    Attributes:
        size: (height, width) of the plane in pixels; None where it differs from sample to sample.
    """

    is_spatial: ClassVar[bool] = True
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class Image(Spatial):
    """Pixels with colours: (H, W, C), or (C, H, W) after `ToLayout("CHW")`.

    Attributes:
        channels: 3 of photos, others as a source declares them, such as 13 bands; 1 after `Grayscale(1)`.
        dtype: Name of the element type: uint8, uint16, int16, float16 or float32.
        layout: "CHW" or "HWC" after `ToLayout`, else None: stored as HWC, seen as CHW.
        top: Greatest value of a pixel, inf where nobody knows it; None after `Normalize`, which moves the values.
    """

    _remedy: ClassVar[str] = _CROP
    channels: int = 3
    dtype: str = "uint8"
    layout: str | None = None
    top: float | None = 255.0

    @property
    def is_photo(self) -> bool:
        """Whether its pixels are what image files are decoded to: uint8, 3 channels."""
        return (self.channels, self.dtype) == (3, "uint8")

    def _in_row(self) -> tuple[Shape | None, str]:
        if self.size is None:
            return None, self.dtype
        return (self.channels, *self.size) if self.layout == "CHW" else (*self.size, self.channels), self.dtype


@dataclass(frozen=True, slots=True)
class Mask(Spatial):
    """A number for each pixel of an image, such as its class: (H, W). Resized by the nearest pixel, never mixed.

    Attributes:
        dtype: "uint8", or "uint16" for numbers of more than 255 objects, or depth in millimetres.
    """

    _remedy: ClassVar[str] = _CROP
    dtype: str = "uint8"

    def _in_row(self) -> tuple[Shape | None, str]:
        return self.size, self.dtype


@dataclass(frozen=True, slots=True)
class Boxes(Spatial):
    """Rectangles on an image: (count, 4), float32; (left, top, right, bottom) in pixels before `ConvertBoxes`.

    Attributes:
        count: How many fit in a row; None while it differs from sample to sample.
        form: "xyxy"; "xywh" or "cxcywh" after `ConvertBoxes`.
        normalized: Coordinates are fractions of the image's width and height.
    """

    _remedy: ClassVar[str] = _PAD_BOXES
    count: int | None = None
    form: str = "xyxy"
    normalized: bool = False

    def _in_row(self) -> tuple[Shape | None, str]:
        return None if self.count is None else (self.count, 4), "float32"


@dataclass(frozen=True, slots=True)
class PerBox(Kind):
    """A number for each box, such as its class: (count,). It stays with its box; -1 fills what follows the last one.

    Attributes:
        count: How many fit in a row; None while it differs from sample to sample.
        dtype: One of `ITEM_BYTES`, with a sign.
    """

    is_spatial: ClassVar[bool] = True
    blank: ClassVar[int] = -1
    _remedy: ClassVar[str] = _PAD_BOXES
    is_per_box: ClassVar[bool] = True
    count: int | None = None
    dtype: str = "int64"

    def _in_row(self) -> tuple[Shape | None, str]:
        return None if self.count is None else (self.count,), self.dtype


@dataclass(frozen=True, slots=True)
class BoxCount(Kind):
    """How many boxes a row holds: a scalar, int64."""

    is_spatial: ClassVar[bool] = True
    is_per_box: ClassVar[bool] = True

    def _in_row(self) -> tuple[Shape | None, str]:
        return (), "int64"


@dataclass(frozen=True, slots=True)
class Keypoints(Spatial):
    """Points on an image, (x, y) in pixels and how visible each is: (count, 3), or (count, each, 3), float32.

    Attributes:
        count: How many fit in a row, or the boxes of a row; None while it differs from sample to sample.
        each: Points of each box, such as the 17 joints of a person; None for points without boxes.
        pairs: Places of two points of a box that swap in a mirrored image, such as the left and right eye.
    """

    _remedy: ClassVar[str] = (
        "the number of points differs from sample to sample: add PadKeypoints(n), or PadBoxes(n) for points of boxes"
    )
    count: int | None = None
    each: int | None = None
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def is_per_box(self) -> bool:
        """As `Kind.is_per_box`."""
        return self.each is not None

    def _in_row(self) -> tuple[Shape | None, str]:
        inner = (3,) if self.each is None else (self.each, 3)
        return None if self.count is None else (self.count, *inner), "float32"


@dataclass(frozen=True, slots=True)
class Label(Kind):
    """The number of a class: a scalar, int64.

    Attributes:
        classes: The names of the classes, by number, where tables hold names. Empty, the default, for numbers.
    """

    blank: ClassVar[int] = -1
    classes: Sequence[str] = field(default=(), repr=False, compare=False)

    def _in_row(self) -> tuple[Shape | None, str]:
        return (), "int64"


@dataclass(frozen=True, slots=True)
class Index(Kind):
    """The place of the sample in its source, a scalar, int64: the column ``index`` of every record."""

    blank: ClassVar[int] = -1

    def _in_row(self) -> tuple[Shape | None, str]:
        return (), "int64"


@dataclass(frozen=True, slots=True)
class Scalar(Kind):
    """One number.

    Attributes:
        dtype: One of `ITEM_BYTES`.
        missing: What the row of a sample without a value gets: a number of this type, or nan. None, the default, makes
            such a sample bad, because no number is right for all models.
        beside: The column of tokens whose number it is.
    """

    dtype: str = "float32"
    missing: float | None = field(default=None, repr=False, compare=False)  # nan does not equal nan
    beside: str = field(default="", repr=False, compare=False)

    def _in_row(self) -> tuple[Shape | None, str]:
        return (), self.dtype


@dataclass(frozen=True, slots=True)
class Array(Kind):
    """An array of numbers.

    Attributes:
        shape: Its shape; None where it differs from sample to sample.
        dtype: One of `ITEM_BYTES`.
        missing: What stands for a missing number in it, as in `Scalar`: for an empty cell of several columns that it
            joins, and for a null in a list.
        fill: What fills a row that holds no sample.
        beside: The column of tokens for each of which it has a number.
    """

    _remedy: ClassVar[str] = (
        "its arrays have no fixed shape: declare it, add PadArray(shape, column) or a PluginOp with returns=, or leave "
        "the column out"
    )
    shape: Shape | None = None
    dtype: str = "float32"
    missing: float | None = field(default=None, repr=False, compare=False)
    fill: float = field(default=0, repr=False, compare=False)
    beside: str = field(default="", repr=False, compare=False)

    @property
    def may_be_missing(self) -> bool:
        """As `Kind.may_be_missing`: only numbers in it may."""
        return False

    @property
    def number(self) -> Scalar:
        """The kind of each number in it."""
        return Scalar(self.dtype, self.missing)

    @property
    def blank(self) -> float:
        """As `Kind.blank`."""
        return self.fill

    def _in_row(self) -> tuple[Shape | None, str]:
        return self.shape, self.dtype


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Text of any length.

    Attributes:
        missing: The text of a sample without one, such as an empty caption. None, the default, makes it bad.
    """

    _remedy: ClassVar[str] = (
        "text has no fixed size: put Tokenize(path) and PadTokens(length) into the pipeline, or leave the column out "
        "of the source"
    )
    missing: str | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Json(Text):
    """A JSON value of any form, such as the messages of a chat, as its text. `missing` is JSON, too, such as ``[]``."""

    _remedy: ClassVar[str] = (
        "a JSON value has no fixed size: a PluginOp with returns= makes something of it, or leave the column out"
    )


@dataclass(frozen=True, slots=True)
class Bytes(Kind):
    """Bytes of any length, opaque to prepserver."""

    _remedy: ClassVar[str] = (
        "bytes have no fixed size: a PluginOp with returns= makes something of them, or leave the column out"
    )


@dataclass(frozen=True, slots=True)
class Tokens(Kind):
    """Numbers of words or parts of words: (count,), int64.

    Attributes:
        count: How many fit in a row; None while it differs from sample to sample.
        fill: What fills a row up, and one that holds no sample; None if no row is filled up.
    """

    _remedy: ClassVar[str] = (
        "samples differ in their number of tokens: end with Truncate(length) and PadTokens(length), or leave the "
        "column out"
    )
    count: int | None = None
    fill: int | None = field(default=None, repr=False, compare=False)

    @property
    def blank(self) -> int:
        """As `Kind.blank`."""
        return self.fill or 0

    def _in_row(self) -> tuple[Shape | None, str]:
        return None if self.count is None else (self.count,), "int64"
