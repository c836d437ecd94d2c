"""What an op is when it runs: a stage draws its parameters for one sample and gives a step to carry out.

Between planning (sizes and random numbers, no pixels) and rendering (pixels, no decisions). A step takes the
part of the image that it said it needs, (H, W, C), and where to write; it writes to a new array if that is None,
may be given its own image, and leaves its input alone otherwise: several row makers read the same decoded pixels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from prepserver.pipeline.kinds import Kind
from prepserver.pipeline.op import Op
from prepserver.transform.draw import Draws
from prepserver.transform.moves import Move

Array = np.ndarray[Any, np.dtype[Any]]
Step = Callable[[Array, Array | None], Array]

FIRST = 1
"""Place of the op that is given what was decoded: behind `Decode`."""


class Box(NamedTuple):
    """A rectangle of an image, in pixels.

    Attributes:
        top: First row.
        left: First column.
        bottom: The row after the last.
        right: The column after the last.
    """

    top: int
    left: int
    bottom: int
    right: int

    def of(self, image: Array) -> Array:
        """Return this rectangle of `image`: a view."""
        return image[self.top : self.bottom, self.left : self.right]

    def within(self, outer: Box) -> Box:
        """Return the same rectangle as seen from the corner of `outer`."""
        top, left = outer.top, outer.left
        return Box(self.top - top, self.left - left, self.bottom - top, self.right - left)

    def over(self, scale: int) -> Box:
        """Return where this rectangle, of multiples of `scale`, lies in the image decoded at 1/`scale`."""
        if scale == 1:
            return self
        return Box(self.top // scale, self.left // scale, self.bottom // scale, self.right // scale)


def around(boxes: Iterable[Box]) -> Box:
    """Return the smallest rectangle that has all `boxes`, one at least, in it."""
    tops, lefts, bottoms, rights = zip(*boxes, strict=True)
    return Box(min(tops), min(lefts), max(bottoms), max(rights))


class Drawn(NamedTuple):
    """One op's decision for one sample.

    Attributes:
        step: What to do with the pixels of `part`; None for nothing.
        height: Rows afterwards.
        width: Columns afterwards.
        part: What the op looks at of its input, and all that the step is given; None for the whole.
        mirrored: A step that does the same and a horizontal flip after it, where that costs less than two.
        scale: The step may be given its part at 1/scale, as a decoder makes it; all of the part is multiples of it.
        moves: The same for whatever else lies on the image's plane, as data.
    """

    step: Step | None
    height: int
    width: int
    part: Box | None = None
    mirrored: Step | None = None
    scale: int = 1
    moves: tuple[Move, ...] = ()


class Stage(ABC):
    """An op at its place in a pipeline.

    Attributes:
        op: The op's class.
        place: The op's place, which its random numbers hang on.
        column: The only column that it changes; None for all of the kinds that the op touches.
        mirrors: All it may do is a horizontal flip.
        settles: Its result differs from its input in shape or dtype, so it cannot be done within one array.
    """

    op: ClassVar[type[Op]]
    settles = True
    mirrors = False
    column: str | None = None

    def __init__(self, op: Any, place: int) -> None:
        self.place = place

    def value(self, value: Any, kind: Kind, draws: Draws) -> Any:
        """Return a value of `column` that lies on no plane of pixels as the op leaves it: of the `kind` afterwards."""
        raise NotImplementedError

    @abstractmethod
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Decide for an image of `height` x `width`.

        Raises:
            BadSample: the image cannot be used for this op.
        """


def delivered(result: Array, into: Array | None) -> Array:
    """Return `result`, copied to `into` where that is given."""
    if into is None:
        return result
    np.copyto(into, result)
    return into
