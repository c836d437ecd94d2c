"""Stages that move pixels: crops, resizes, pads, flips. torchvision v2's laws, drawn from our own numbers."""

from __future__ import annotations

import math
from functools import partial

from prepserver.pipeline.ops import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from prepserver.transform.draw import Draws
from prepserver.transform.errors import BadSample
from prepserver.transform.resize import flip, resize
from prepserver.transform.scale import divisor, scale_for
from prepserver.transform.stage import FIRST, Array, Box, Drawn, Stage, delivered
from prepserver.transform.window import window


class ResizedCropStage(Stage):
    """RandomResizedCrop: torchvision's law, ten tries and then the middle."""

    def __init__(self, op: RandomResizedCrop, place: int) -> None:
        super().__init__(place)
        self._op = op
        self._first = place == FIRST
        self._step = partial(_resized, op.size, op.interpolation, False)
        self._mirrored = partial(_resized, op.size, op.interpolation, True)
        self._log_ratio = (math.log(op.ratio[0]), math.log(op.ratio[1]))

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Choose a part and resize it. One that can be decoded at 1/scale is moved by less than that to fit."""
        top, left, rows, columns = self.box(height, width, draws)
        scale = scale_for(rows, columns, self._op.size) if self._first else 1
        if scale > 1:
            top, left, rows, columns = (number - number % scale for number in (top, left, rows, columns))
        part = Box(top, left, top + rows, left + columns)
        return Drawn(self._step, *self._op.size, part, self._mirrored, scale)

    def box(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of the part, as `RandomResizedCrop.make_params` does.

        `log` and `exp` may differ in the last bit between C libraries; that moves a crop by a pixel once in
        some 10**12 samples.
        """
        least, greatest = self._op.scale
        for _ in range(10):
            area = height * width * draws.uniform(least, greatest)
            aspect = math.exp(draws.uniform(*self._log_ratio))
            crop_width = round(math.sqrt(area * aspect))
            crop_height = round(math.sqrt(area / aspect))
            if 0 < crop_width <= width and 0 < crop_height <= height:
                top = draws.below(height - crop_height + 1)
                return top, draws.below(width - crop_width + 1), crop_height, crop_width
        narrow, wide = self._op.ratio
        crop_height, crop_width = height, width
        if width / height < narrow:
            crop_height = max(1, round(width / narrow))
        elif width / height > wide:
            crop_width = max(1, round(height * wide))
        return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


class ResizeStage(Stage):
    """Resize."""

    def __init__(self, op: Resize, place: int) -> None:
        super().__init__(place)
        self._op = op
        self._first = place == FIRST

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Work out the size."""
        size = self._op.result(height, width)
        if size == (height, width):
            return Drawn(None, *size)
        step, mirrored = (partial(_resized, size, self._op.interpolation, mirror) for mirror in (False, True))
        # Nothing of the whole may be left out, so its sides decide too.
        scale = divisor(height, width, scale_for(height, width, size)) if self._first else 1
        return Drawn(step, *size, None, mirrored, scale)


class CenterCropStage(Stage):
    """CenterCrop, with torchvision's rounding on either side of the image's size."""

    def __init__(self, op: CenterCrop, place: int) -> None:
        super().__init__(place)
        self._op = op

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Find the middle."""
        top, left = _centre(height, self._op.size[0]), _centre(width, self._op.size[1])
        return _cut((top, left, *self._op.size), (height, width), "constant", (0.0,))


class RandomCropStage(Stage):
    """RandomCrop: a window of the padded image."""

    def __init__(self, op: RandomCrop, place: int) -> None:
        super().__init__(place)
        self._op = op

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Choose a place."""
        op = self._op
        left, top, right, bottom = op.margins(height, width)
        spare_rows = height + top + bottom - op.size[0]
        spare_columns = width + left + right - op.size[1]
        if spare_rows < 0 or spare_columns < 0:
            raise BadSample(
                f"{height}x{width} pixels are too few for RandomCrop({op.size}) (pad_if_needed=True would pad it)"
            )
        row = draws.below(spare_rows + 1) - top
        column = draws.below(spare_columns + 1) - left
        return _cut((row, column, *op.size), (height, width), op.padding_mode, op.fill)


class PadStage(Stage):
    """Pad: a window larger than the image."""

    def __init__(self, op: Pad, place: int) -> None:
        super().__init__(place)
        self._op = op

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Add the margins."""
        left, top, right, bottom = self._op.padding
        box = (-top, -left, height + top + bottom, width + left + right)
        return _cut(box, (height, width), self._op.padding_mode, self._op.fill)


class FlipStage(Stage):
    """RandomHorizontalFlip and RandomVerticalFlip."""

    settles = False

    def __init__(self, op: RandomHorizontalFlip | RandomVerticalFlip, place: int) -> None:
        super().__init__(place)
        self._p = op.p
        self.mirrors = isinstance(op, RandomHorizontalFlip)
        self._step = partial(_flipped, 1 if self.mirrors else 0)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Toss the coin."""
        return Drawn(self._step if draws.uniform() < self._p else None, height, width)


def _centre(length: int, wanted: int) -> int:
    """Return where the middle `wanted` pixels of `length` begin; below 0 where there are too few.

    torchvision halves the shortfall downwards and rounds the surplus half to even; after padding one side
    only, an odd shortfall has its extra pixel at the end.
    """
    if wanted > length:
        return -((wanted - length) // 2)
    return round((length - wanted) / 2.0)


def _cut(box: tuple[int, int, int, int], full: tuple[int, int], mode: str, fill: tuple[float, ...]) -> Drawn:
    top, left, height, width = box
    if box == (0, 0, *full):
        return Drawn(None, height, width)
    part = Box(max(0, top), max(0, left), min(full[0], top + height), min(full[1], left + width))
    if part == (top, left, top + height, left + width):
        return Drawn(None, height, width, part)
    if mode != "constant":
        return Drawn(partial(_windowed, box, mode, fill), height, width)
    if part.top >= part.bottom or part.left >= part.right:
        part = Box(0, 0, 1, 1)  # beside the image: nothing of it is seen, but no image is empty
    # What lies beyond the part is beyond the image, so the window may take the part for the image.
    inner = (top - part.top, left - part.left, height, width)
    return Drawn(partial(_windowed, inner, mode, fill), height, width, part)


def _resized(size: tuple[int, int], interpolation: str, mirror: bool, image: Array, into: Array | None) -> Array:
    return resize(image, size, interpolation, into, mirror)


def _windowed(
    box: tuple[int, int, int, int], mode: str, fill: tuple[float, ...], image: Array, into: Array | None
) -> Array:
    return window(image, box, mode, fill, into)


def _flipped(axis: int, image: Array, into: Array | None) -> Array:
    return delivered(flip(image, axis), into)
