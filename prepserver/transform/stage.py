"""Ops at run time: a stage draws an op's parameters for one sample and returns a step to carry out.

Planning (sizes and random numbers, no pixels) draws; rendering (pixels, no decisions) carries out the steps. A step
takes the part of the image that it asked for, (H, W, C), and an array to write to, or None for a new one. It may return
its input, and it never changes its input: several row makers read the same decoded pixels.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op
from prepserver.pipeline.random_words import SampleKey, eight_words, op_key
from prepserver.pipeline.record import Columns
from prepserver.transform.moves import Cut, Displace, Move, Warp

if TYPE_CHECKING:
    from prepserver.transform.objects import Objects

Array = np.ndarray[Any, np.dtype[Any]]
Step = Callable[[Array, Array | None], Array]
OpT = TypeVar("OpT", bound=Op)

FIRST = 1  # place of the op that gets the decoded image: after `Decode`
NOT_FIRST = 0  # place of a stage within a stage that never gets an image that is decoded at a smaller scale

_WORDS = struct.Struct("<8Q")


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


class Draws:
    """The endless sequence of random numbers of the op at `place` in a pipeline, for one `view` of a sample.

    `Decode` is at place 0. See `prepserver.pipeline.random_words`.
    """

    __slots__ = ("_block", "_key", "_place", "_words", "view")

    def __init__(self, key: SampleKey, place: int, view: int = 0) -> None:
        self._key = key
        self._place, self.view = op_key(place, view), view
        self._block = 0
        self._words: list[int] = []

    def word(self) -> int:
        """Return the next uniform integer in [0, 2**64)."""
        return (self._words or self._more()).pop()

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return the next uniform number in [low, high); 53 random bits."""
        return low + (high - low) * (((self._words or self._more()).pop() >> 11) * 2.0**-53)

    def below(self, count: int) -> int:
        """Return the next uniform integer in [0, count); count at least 1.

        Multiply and shift (Lemire 2019) without rejection: for counts of pixels the bias is below 2**-49.
        """
        return ((self._words or self._more()).pop() * count) >> 64

    def key(self) -> int:
        """Return the next 128 bits, the key of a generator of many numbers."""
        return self.word() << 64 | self.word()

    def _more(self) -> list[int]:
        """Return eight words, to be taken from the end."""
        self._words = list(_WORDS.unpack(eight_words(self._key, self._place, self._block))[::-1])
        self._block += 1
        return self._words


class Drawn(NamedTuple):
    """One op's decision for one sample."""

    step: Step | None  # what to do with the pixels of `part`; None for nothing
    height: int  # rows afterwards
    width: int  # columns afterwards
    part: Box | None = None  # the part of its input that the step gets; None for the whole
    mirrored: Step | None = None  # a step that also flips horizontally, if that costs less than two steps
    scale: int = 1  # the step may get its part decoded at 1/scale; all numbers of the part are multiples of it
    moves: tuple[Move, ...] = ()  # the same decision, as data, for everything else on the image's plane


class Stage(ABC, Generic[OpT]):
    """An op at its place in a pipeline."""

    axis: int | None = None  # it only flips, along this axis: `ROWS` or `COLUMNS`
    sees_boxes = False  # it decides by the sample's boxes: `draw_by` is asked, not `draw`
    takes_blocks = False  # `make_block` makes the values of several samples faster than `make` one by one
    column: str | None = None  # the only column that it changes; None for all of the kinds that the op touches
    makes: tuple[str, ...] = ()  # columns whose values it may make or change, apart from images and what follows them

    def __init__(self, op: OpT, place: int) -> None:
        self._op = op
        self.place = place  # the op's place, on which its random numbers depend
        self._mask_fill: int | None = getattr(op, "mask_fill", None)

    def filling(self, drawn: Drawn) -> Drawn:
        """Return a decision of the stage with moves that fill masks with the op's `mask_fill`, if it has one."""
        if self._mask_fill is None:
            return drawn
        fill = (float(self._mask_fill),)
        moves = (each._replace(fill=fill) if isinstance(each, Cut | Warp | Displace) else each for each in drawn.moves)
        return drawn._replace(moves=tuple(moves))

    def most_scale(self, height: int, width: int) -> int:
        """Return the greatest `Drawn.scale` that may be drawn for an image of this size."""
        return 1

    def make(self, values: dict[str, Any], after: Columns, draws: Draws) -> None:
        """Make or change the values of `makes`, to be of the kinds that they have in the record `after` the op.

        Raises:
            BadSample: The op cannot use a value.
        """
        self.make_block([values], after, [draws])

    def make_block(self, block: Sequence[dict[str, Any]], after: Columns, draws: Sequence[Draws]) -> None:
        """As `make`, for samples of one chunk. The values of one must not depend on the others.

        A stage overrides one of the two.

        Raises:
            BadSample: The op cannot use a value of at least one sample; call this with each one alone to find which.
        """
        for values, each in zip(block, draws, strict=True):
            self.make(values, after, each)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Decide for an image of `height` x `width`; raises `BadSample` if the op cannot use it."""
        raise NotImplementedError

    def draw_by(self, objects: Objects, draws: Draws) -> Drawn:
        """Decide for an image with boxes; raises as `draw`."""
        raise NotImplementedError


class RecordStage(Stage[OpT]):
    """A stage that touches no image."""

    def __init__(self, op: Any, place: int) -> None:
        super().__init__(op, place)
        self.column = op.column
        self.makes = (op.column,)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """As `Stage.draw`; leaves the image as it is."""
        return Drawn(None, height, width)


class ValueStage(Stage[OpT]):
    """A stage that only changes values, and draws nothing."""

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return Drawn(self.step, height, width)

    @abstractmethod
    def step(self, image: Array, into: Array | None) -> Array:
        """Return the image with its values changed; a `Step`."""


class Mix(NamedTuple):
    """The decision for one row that mixes samples."""

    partners: tuple[int, ...]  # indices of the other samples
    draws: Draws  # for what is drawn once the parts exist
    canvas: Size = (0, 0)  # (height, width) of what parts side by side make together
    places: tuple[Box, ...] = ()  # where each part lies on it: the row's own sample, then the partners. They cover it.


Part = dict[str, Any]
"""A sample's columns on the image's plane, as a source would give them; images and masks are pixels."""


class Follow(NamedTuple):
    """Columns of a row maker that follow the image together: a mask, or boxes and what there is for each of them."""

    column: str  # the column whose kind says how. Messages name it for all of them.
    kinds: Columns  # what the source gives, by column
    outs: tuple[tuple[str, int], ...]  # what is made of it: names of columns, and their places among the maker's fields


class MixStage(Stage[OpT]):
    """A stage that makes one sample of several: `draw_part` is asked, not `draw`."""

    @abstractmethod
    def mix(self, samples: int, draws: Draws) -> Mix:
        """Decide for one row of a source that has `samples` samples."""

    @abstractmethod
    def draw_part(self, height: int, width: int, number: int, mix: Mix) -> Drawn:
        """Decide for a part of this size, 0 for the row's own sample."""

    @abstractmethod
    def joined(self, parts: Sequence[Part], mix: Mix, images: Sequence[str], follows: Sequence[Follow]) -> Part:
        """Return all parts as one; `images` and `follows` are their columns."""


def delivered(result: Array, into: Array | None) -> Array:
    """Return `result`, copied to `into` if that is given."""
    if into is None:
        return result
    np.copyto(into, result)
    return into
