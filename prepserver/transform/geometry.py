"""Shared by stages that move pixels: windows, sizes, mirrors."""

from __future__ import annotations

from functools import partial

from prepserver.transform.chance import ChanceStage, ChanceT
from prepserver.transform.errors import BadSample
from prepserver.transform.moves import Cut, Mirror, Scale
from prepserver.transform.resize import flip, resize
from prepserver.transform.scale import divisor, scale_for
from prepserver.transform.stage import FIRST, Array, Box, Drawn, Draws, delivered
from prepserver.transform.window import window


class FlipStage(ChanceStage[ChanceT]):
    """A flip along `axis` with probability `p`."""

    axis: int

    def chosen(self, height: int, width: int, draws: Draws) -> Drawn:
        return flipped(self.axis, (height, width))


def flipped(axis: int, full: tuple[int, int]) -> Drawn:
    """Return the decision to mirror an image of the size `full`: `ROWS` or `COLUMNS`."""
    return Drawn(partial(_flipped, axis), *full, moves=(Mirror(axis),))


def corner(number: int, size: tuple[int, int], full: tuple[int, int]) -> Drawn:
    """Return the decision to take a corner of an image, 0 to 3 by rows, or its middle, 4.

    Raises:
        BadSample: The image is smaller.
    """
    (height, width), (rows, columns) = size, full
    if height > rows or width > columns:
        raise BadSample(f"{rows}x{columns} pixels are too few for crops of {height}x{width}")
    if number == 4:
        top, left = centre(rows, height), centre(columns, width)
    else:
        top, left = (number // 2) * (rows - height), (number % 2) * (columns - width)
    return cut((top, left, height, width), full)


def centre(length: int, wanted: int) -> int:
    """Return where the middle `wanted` pixels of `length` begin; below 0 if there are too few.

    torchvision rounds half of a shortfall down and half of a surplus to even; an odd shortfall has its extra pixel at
    the end.
    """
    if wanted > length:
        return -((wanted - length) // 2)
    return round((length - wanted) / 2.0)


def cut(
    box: tuple[int, int, int, int], full: tuple[int, int], mode: str = "constant", fill: tuple[float, ...] = (0.0,)
) -> Drawn:
    """Return the decision to take the window `box`, (top, left, height, width), out of an image of the size `full`.

    Where the window reaches beyond the image it is padded: `mode` and `fill` as in `Pad`.
    """
    top, left, height, width = box
    moves = (Cut(top, left, height, width, mode, fill),)
    if box == (0, 0, *full):
        return Drawn(None, height, width, moves=moves)  # which clamps boxes
    part = Box(max(0, top), max(0, left), min(full[0], top + height), min(full[1], left + width))
    if part == (top, left, top + height, left + width):
        return Drawn(None, height, width, part, moves=moves)
    if mode != "constant":
        return Drawn(partial(window, box=box, mode=mode, fill=fill), height, width, moves=moves)
    if part.top >= part.bottom or part.left >= part.right:
        part = Box(0, 0, 1, 1)  # the window shows nothing of the image, but a part may not be empty
    # What lies beyond the part is beyond the image, so the part serves as the image.
    inner = (top - part.top, left - part.left, height, width)
    return Drawn(partial(window, box=inner, mode=mode, fill=fill), height, width, part, moves=moves)


def resizing(size: tuple[int, int], interpolation: str, full: tuple[int, int], place: int) -> Drawn:
    """Return the decision to resize an image of the size `full` by the op at a `place`."""
    if size == full:
        return Drawn(None, *size)
    step = partial(resize, size=size, interpolation=interpolation)
    # No pixel may be left out, so the scale must divide both sides.
    scale = divisor(*full, scale_for(*full, size)) if place == FIRST else 1
    return Drawn(step, *size, None, partial(step, mirror=True), scale, (Scale(*size),))


def _flipped(axis: int, image: Array, into: Array | None) -> Array:
    return delivered(flip(image, axis), into)
