"""What an op is when it runs: a stage draws its parameters for one sample and returns a step to carry out.

Planning (sizes and random numbers, no pixels) draws; rendering (pixels, no decisions) carries out the steps. A step
takes the part of the image that it asked for, (H, W, C), and an array to write to, or None for a new one. It may return
its input, and it never changes its input: several row makers read the same decoded pixels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Record
from prepserver.transform.draw import Draws
from prepserver.transform.moves import Move

if TYPE_CHECKING:
    from prepserver.transform.objects import Objects
    from prepserver.transform.rowmaker import Follow

Array = np.ndarray[Any, np.dtype[Any]]
Step = Callable[[Array, Array | None], Array]

FIRST = 1
"""Place of the op that gets the decoded image: after `Decode`."""


class Box(NamedTuple):
    """A rectangle of an image in pixels: rows [top, bottom), columns [left, right)."""

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
    """Return the smallest rectangle around all `boxes`, at least one."""
    tops, lefts, bottoms, rights = zip(*boxes, strict=True)
    return Box(min(tops), min(lefts), max(bottoms), max(rights))


def tiled(parts: Sequence[Array], canvas: Size, places: Sequence[Box]) -> Array:
    """Return pixels, (H, W) or (H, W, C), side by side on a canvas, (height, width), which the places cover."""
    result: Array = np.empty((*canvas, *parts[0].shape[2:]), parts[0].dtype)
    for part, place in zip(parts, places, strict=True):
        place.of(result)[...] = part
    return result


class Drawn(NamedTuple):
    """One op's decision for one sample.

    Attributes:
        step: What to do with the pixels of `part`; None for nothing.
        height: Rows afterwards.
        width: Columns afterwards.
        part: The part of its input that the step gets; None for the whole.
        mirrored: A step that also flips horizontally, if that costs less than two steps.
        scale: The step may get its part decoded at 1/scale; all numbers of the part are multiples of it.
        moves: The same decision, as data, for everything else on the image's plane.
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
        place: The op's place, on which its random numbers depend.
        column: The only column that it changes; None for all of the kinds that the op touches.
        makes: Columns whose values it may make or change, apart from images and what follows them.
        mirrors: It can only flip horizontally.
        settles: Its result differs from its input in shape or dtype, so it cannot work within one array.
        sees_boxes: It decides by the sample's boxes: `draw_by` is asked, not `draw`.
        takes_blocks: It makes the values of several samples at once in less time, by `make_block`.
    """

    op: ClassVar[type[Op]]
    settles = True
    mirrors = False
    sees_boxes = False
    takes_blocks = False
    column: str | None = None
    makes: tuple[str, ...] = ()

    def __init__(self, op: Any, place: int) -> None:
        self._op = op
        self.place = place

    def most_scale(self, height: int, width: int) -> int:
        """Return the greatest `Drawn.scale` that may be drawn for an image of this size."""
        return 1

    def make(self, values: dict[str, Any], after: Record, draws: Draws) -> None:
        """Make or change the values of `makes`, to be of the kinds that they have in the record `after` the op.

        Raises:
            BadSample: The op cannot use a value.
        """
        self.make_block([values], after, [draws])

    def make_block(self, block: Sequence[dict[str, Any]], after: Record, draws: Sequence[Draws]) -> None:
        """As `make`, for samples of one chunk; what is made of one must not depend on the others.

        A stage overrides one of the two.

        Raises:
            BadSample: The op cannot use a value of at least one; alone, each is told from the others.
        """
        for values, each in zip(block, draws, strict=True):
            self.make(values, after, each)

    @abstractmethod
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Decide for an image of `height` x `width`.

        Raises:
            BadSample: The op cannot use the image.
        """

    def draw_by(self, objects: Objects, draws: Draws) -> Drawn:
        """Decide for an image with boxes; raises as `draw`."""
        raise NotImplementedError


class RecordStage(Stage):
    """A stage that touches no image."""

    def __init__(self, op: Any, place: int) -> None:
        super().__init__(op, place)
        self.column = op.column

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """As `Stage.draw`."""
        return Drawn(None, height, width)


class ValueStage(Stage):
    """A stage that decides nothing and moves nothing: it changes values."""

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """As `Stage.draw`."""
        return Drawn(self.step, height, width)

    @abstractmethod
    def step(self, image: Array, into: Array | None) -> Array:
        """Return the image with its values changed; a `Step`."""


class Mix(NamedTuple):
    """What is decided for one row.

    Attributes:
        partners: Indices of the other samples.
        draws: For what is drawn when the parts are there.
        canvas: (height, width) of what parts side by side make together.
        places: Where each part lies on it: the row's own sample, then the partners. They cover it.
    """

    partners: tuple[int, ...]
    draws: Draws
    canvas: Size = (0, 0)
    places: tuple[Box, ...] = ()


Part = dict[str, Any]
"""A sample's columns on the image's plane, as a source would give them; images and masks are pixels."""


class MixStage(Stage):
    """A stage that makes one sample of several."""

    @abstractmethod
    def mix(self, samples: int, draws: Draws) -> Mix:
        """Decide for one row of a source with so many samples."""

    @abstractmethod
    def draw_part(self, height: int, width: int, number: int, mix: Mix) -> Drawn:
        """Decide for a part of this size, 0 for the row's own sample."""

    @abstractmethod
    def joined(self, parts: Sequence[Part], mix: Mix, images: Sequence[str], follows: Sequence[Follow]) -> Part:
        """Return all parts as one; `images` and `follows` are their columns."""

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """As `Stage.draw`; it is asked for parts."""
        raise NotImplementedError


def delivered(result: Array, into: Array | None) -> Array:
    """Return `result`, copied to `into` if that is given."""
    if into is None:
        return result
    np.copyto(into, result)
    return into
