"""Ops that move pixels: crops, resizes, pads, flips. Meaning as in torchvision.transforms.v2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import ImageState, Op

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True, slots=True, init=False)
class RandomResizedCrop(Op):
    """A random part of the image, by area and aspect ratio, resized (antialiased) to one size.

    Attributes:
        size: (height, width) of the result in pixels; an int means a square.
        scale: Least and greatest share of the image's area, before resizing.
        ratio: Least and greatest width / height of the part; drawn log-uniformly.
        interpolation: "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name. Resizing is always
            antialiased; ``antialias=True`` is accepted.
    """

    size: tuple[int, int]
    scale: tuple[float, float]
    ratio: tuple[float, float]
    interpolation: str

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: str | Enum = "bilinear",
        antialias: bool = True,
    ) -> None:
        checks.antialias(antialias)
        self._keep(
            size=checks.size("size", size),
            scale=checks.number_range("scale", scale, 0.0, 1.0),
            ratio=checks.number_range("ratio", ratio, 1e-3, 1e3),
            interpolation=checks.interpolation("interpolation", interpolation),
        )
        if self.scale[1] == 0.0:
            raise SpecError("scale", scale, "must leave some area: the greatest is 0")

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the fixed size."""
        state.need_uint8(self)
        return replace(state, size=self.size)


@dataclass(frozen=True, slots=True, init=False)
class Resize(Op):
    """Resize, antialiased.

    Attributes:
        size: An int for the shorter side (the other keeps the aspect ratio), or (height, width); in pixels.
        max_size: With an int size: the longer side never passes it, the shorter shrinks instead.
        interpolation: As in `RandomResizedCrop`.
    """

    size: int | tuple[int, int]
    max_size: int | None
    interpolation: str

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: str | Enum = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
    ) -> None:
        checks.antialias(antialias)
        if isinstance(size, list | tuple) and len(size) == 1:
            size = size[0]  # torchvision: [n] means n
        canonical = checks.size("size", size) if isinstance(size, list | tuple) else checks.side("size", size)
        if max_size is not None:
            max_size = checks.side("max_size", max_size)
            if isinstance(canonical, tuple):
                raise SpecError("max_size", max_size, "goes with one int as size (the shorter side) only")
            if max_size <= canonical:
                raise SpecError("max_size", max_size, f"must be greater than size ({canonical})")
        self._keep(
            size=canonical,
            max_size=max_size,
            interpolation=checks.interpolation("interpolation", interpolation),
        )

    def result(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) in pixels of an image of `height` x `width` after resizing.

        torchvision's `_compute_resized_output_size`: the longer side is truncated, not rounded.
        """
        if isinstance(self.size, tuple):
            return self.size
        short, long = (width, height) if width <= height else (height, width)
        new_short, new_long = self.size, int(self.size * long / short)
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        new_short = max(1, new_short)  # a sliver under max_size would lose its last pixel
        return (new_long, new_short) if width <= height else (new_short, new_long)

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the size where it does not depend on the sample."""
        state.need_uint8(self)
        if isinstance(self.size, tuple):
            return replace(state, size=self.size)
        return replace(state, size=None if state.size is None else self.result(*state.size))


@dataclass(frozen=True, slots=True, init=False)
class CenterCrop(Op):
    """The middle of the image; where the image is smaller, it is first padded with 0.

    Attributes:
        size: (height, width) in pixels; an int means a square.
    """

    size: tuple[int, int]

    def __init__(self, size: int | Sequence[int]) -> None:
        self._keep(size=checks.size("size", size))

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the fixed size."""
        return replace(state, size=self.size)


@dataclass(frozen=True, slots=True, init=False)
class RandomCrop(Op):
    """A part of one size at a random place.

    Attributes:
        size: (height, width) in pixels; an int means a square.
        padding: (left, top, right, bottom) in pixels put around the image first, or None.
        pad_if_needed: Pad an image that is smaller than `size`; otherwise such a sample is bad.
        fill: Value of constant padding: one for all channels, or one for each.
        padding_mode: "constant", "edge", "reflect" (without the edge pixel) or "symmetric" (with it).
    """

    size: tuple[int, int]
    padding: tuple[int, int, int, int] | None
    pad_if_needed: bool
    fill: tuple[float, ...]
    padding_mode: str

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] = 0,
        padding_mode: str = "constant",
    ) -> None:
        self._keep(
            size=checks.size("size", size),
            padding=None if padding is None else checks.padding("padding", padding),
            pad_if_needed=checks.flag("pad_if_needed", pad_if_needed),
            fill=checks.fill("fill", fill),
            padding_mode=checks.choice("padding_mode", padding_mode, PADDING_MODES),
        )

    def margins(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (left, top, right, bottom) padding in pixels for an image of `height` x `width`."""
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        if self.pad_if_needed:  # torchvision adds the whole shortfall to either side
            down = max(0, self.size[0] - (height + top + bottom))
            across = max(0, self.size[1] - (width + left + right))
            return left + across, top + down, right + across, bottom + down
        return left, top, right, bottom

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the fixed size."""
        check_fill(self.fill, state)
        if state.size is not None:
            left, top, right, bottom = self.margins(*state.size)
            padded = (state.size[0] + top + bottom, state.size[1] + left + right)
            if padded[0] < self.size[0] or padded[1] < self.size[1]:
                raise SpecError(
                    "size", self.size, f"is larger than the image ({padded}): smaller, or pad_if_needed=True"
                )
        return replace(state, size=self.size)


@dataclass(frozen=True, slots=True, init=False)
class Pad(Op):
    """Pixels put around the image.

    Attributes:
        padding: (left, top, right, bottom) in pixels; an int is all four, a pair left/right and top/bottom.
        fill: Value of constant padding: one for all channels, or one for each.
        padding_mode: "constant", "edge", "reflect" (without the edge pixel) or "symmetric" (with it).
    """

    padding: tuple[int, int, int, int]
    fill: tuple[float, ...]
    padding_mode: str

    def __init__(
        self, padding: int | Sequence[int], fill: float | Sequence[float] = 0, padding_mode: str = "constant"
    ) -> None:
        self._keep(
            padding=checks.padding("padding", padding),
            fill=checks.fill("fill", fill),
            padding_mode=checks.choice("padding_mode", padding_mode, PADDING_MODES),
        )

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the size with its margins."""
        check_fill(self.fill, state)
        if state.size is None:
            return state
        left, top, right, bottom = self.padding
        return replace(state, size=(state.size[0] + top + bottom, state.size[1] + left + right))


@dataclass(frozen=True, slots=True, init=False)
class RandomHorizontalFlip(Op):
    """Mirror left and right, sometimes.

    Attributes:
        p: How probable that is, 0 to 1.
    """

    p: float

    def __init__(self, p: float = 0.5) -> None:
        self._keep(p=checks.number("p", p, 0.0, 1.0))


@dataclass(frozen=True, slots=True, init=False)
class RandomVerticalFlip(Op):
    """Mirror top and bottom, sometimes.

    Attributes:
        p: How probable that is, 0 to 1.
    """

    p: float

    def __init__(self, p: float = 0.5) -> None:
        self._keep(p=checks.number("p", p, 0.0, 1.0))


def check_fill(fill: tuple[float, ...], state: ImageState) -> None:
    """Refuse a padding value that the image cannot hold.

    Raises:
        SpecError: one per channel for another number of channels, or no byte while the image is uint8.
    """
    if len(fill) not in (1, state.channels):
        raise SpecError("fill", fill, f"must have 1 value or one for each of {state.channels} channels")
    if state.dtype == "uint8" and any(value != int(value) or not 0 <= value <= 255 for value in fill):
        raise SpecError("fill", fill, "must be whole numbers from 0 to 255 while the image is uint8")
