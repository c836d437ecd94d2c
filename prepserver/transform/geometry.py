"""What the stages that move pixels share: windows, sizes, mirrors."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from prepserver.pipeline.ops.random_horizontal_flip import RandomHorizontalFlip
from prepserver.pipeline.ops.random_vertical_flip import RandomVerticalFlip
from prepserver.transform.draw import Draws
from prepserver.transform.errors import BadSample
from prepserver.transform.moves import Cut, Mirror, Scale
from prepserver.transform.resize import flip, resize
from prepserver.transform.scale import divisor, scale_for
from prepserver.transform.stage import FIRST, Array, Box, Drawn, Stage, delivered
from prepserver.transform.window import window


class FlipStage(Stage):
    """A flip with probability `p`.

    Attributes:
        axis: The axis that is reversed: `ROWS` or `COLUMNS`.
    """

    settles = False
    axis: ClassVar[int]

    def __init__(self, op: RandomHorizontalFlip | RandomVerticalFlip, place: int) -> None:
        super().__init__(op, place)
        self._p = op.p

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """As `Stage.draw`."""
        if draws.uniform() < self._p:
            return flipped(self.axis, (height, width))
        return Drawn(None, height, width)


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
        return cut((centre(rows, height), centre(columns, width), height, width), full, "constant", (0.0,))
    return cut(
        ((number // 2) * (rows - height), (number % 2) * (columns - width), height, width), full, "constant", (0.0,)
    )


def centre(length: int, wanted: int) -> int:
    """Return where the middle `wanted` pixels of `length` begin; below 0 if there are too few.

    torchvision rounds half of a shortfall down and half of a surplus to even; an odd shortfall has its extra pixel at
    the end.
    """
    if wanted > length:
        return -((wanted - length) // 2)
    return round((length - wanted) / 2.0)


def cut(box: tuple[int, int, int, int], full: tuple[int, int], mode: str, fill: tuple[float, ...]) -> Drawn:
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
        return Drawn(partial(_windowed, box, mode, fill), height, width, moves=moves)
    if part.top >= part.bottom or part.left >= part.right:
        part = Box(0, 0, 1, 1)  # the window shows nothing of the image, but a part may not be empty
    # What lies beyond the part is beyond the image, so the part serves as the image.
    inner = (top - part.top, left - part.left, height, width)
    return Drawn(partial(_windowed, inner, mode, fill), height, width, part, moves=moves)


def resizing(size: tuple[int, int], interpolation: str, full: tuple[int, int], place: int) -> Drawn:
    """Return the decision to resize an image of the size `full` by the op at a `place`."""
    if size == full:
        return Drawn(None, *size)
    step, mirrored = (partial(resized, size, interpolation, mirror) for mirror in (False, True))
    # No pixel may be left out, so the scale must divide both sides.
    scale = divisor(*full, scale_for(*full, size)) if place == FIRST else 1
    return Drawn(step, *size, None, mirrored, scale, (Scale(*size),))


def resized(size: tuple[int, int], interpolation: str, mirror: bool, image: Array, into: Array | None) -> Array:
    """Return an image resized, and mirrored if wanted: a step."""
    return resize(image, size, interpolation, into, mirror)


def _windowed(
    box: tuple[int, int, int, int], mode: str, fill: tuple[float, ...], image: Array, into: Array | None
) -> Array:
    return window(image, box, mode, fill, into)


def _flipped(axis: int, image: Array, into: Array | None) -> Array:
    return delivered(flip(image, axis), into)
