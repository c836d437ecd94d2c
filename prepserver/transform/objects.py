"""The boxes of a sample and what belongs to each, as torchvision's v2 transforms move them; float32 as there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from prepserver.pipeline.kinds import Size
from prepserver.transform import warp
from prepserver.transform.moves import COLUMNS, Cut, Displace, Mirror, Move, Scale, Warp
from prepserver.transform.stage import Array, Drawn, Draws, OpT, Stage

Pairs = tuple[tuple[int, int], ...]

_ZERO = np.float32(0)
_CORNERS = np.array([[0, 1], [2, 1], [2, 3], [0, 3]])  # places of x and y in a box


@dataclass(slots=True)
class Objects:
    """Boxes on a plane. Whoever made them may change them and their arrays, except `numbers`."""

    size: Size  # (height, width) of the plane in pixels
    boxes: Array  # (count, 4), float32, in the form of `form`
    points: Mapping[str, Array]  # keypoints of each box by column, (count, each, 3)
    numbers: Mapping[str, Array]  # a number for each box by column, (count,)
    pairs: Mapping[str, Pairs]  # places of points that change names in a mirror, by column
    form: str = "xyxy"  # see `prepserver.pipeline.kinds.Boxes`

    def after(self, moves: Iterable[Move]) -> Objects:
        """Return them after all moves, in order; these stay as they are."""
        points = {name: each.copy() for name, each in self.points.items()}
        objects = Objects(self.size, self.boxes.copy(), points, self.numbers, self.pairs, self.form)
        for move in moves:
            how = _MOVES.get(type(move))
            if how is None:
                objects = move(objects)  # type: ignore[operator]
            else:
                for name, each in objects.points.items():
                    move_points(each, move, objects.size, self.pairs[name])
                how(objects, move)
        return objects

    def chosen(self, which: Array) -> Objects:
        """Return some of them: their places in order, or a bool for each."""
        points = {name: each[which] for name, each in self.points.items()}
        numbers = {name: each[which] for name, each in self.numbers.items()}
        return Objects(self.size, self.boxes[which], points, numbers, self.pairs, self.form)

    @property
    def areas(self) -> Array:
        """In the square of the boxes' unit."""
        sides: Array = self.boxes[:, 2:] - self.boxes[:, :2] if self.form == "xyxy" else self.boxes[:, 2:]
        areas: Array = sides[:, 0] * sides[:, 1]
        return areas

    def clamp(self) -> None:
        """Cut boxes (left, top, right, bottom) at the edges of the plane; one outside is left without an area."""
        self.boxes.clip(_ZERO, extent(self.size), self.boxes)


def _cut(objects: Objects, move: Cut) -> None:
    top, left, height, width, *_ = move
    objects.boxes -= floats(left, top, left, top)
    objects.size = (height, width)
    objects.clamp()  # as torchvision


def _scale(objects: Objects, move: Scale) -> None:
    objects.boxes *= _ratios(objects.size, move, 2)
    objects.size = move.height, move.width


def _mirror(objects: Objects, move: Mirror) -> None:
    first = 0 if move.axis == COLUMNS else 1
    sides = objects.boxes[:, first::2]
    sides[...] = objects.size[move.axis] - sides[:, ::-1]


def _warp(objects: Objects, move: Warp) -> None:
    objects.boxes = _around(warp.warped_points(objects.boxes[:, _CORNERS], move.matrix))
    objects.size = move.height, move.width
    objects.clamp()


def _displace(objects: Objects, move: Displace) -> None:
    objects.boxes = _around(move.field.moved(np.ceil(objects.boxes[:, _CORNERS])))
    objects.clamp()


_MOVES: dict[type[Any], Callable[[Objects, Any], None]] = {
    Cut: _cut, Scale: _scale, Mirror: _mirror, Warp: _warp, Displace: _displace,
}  # fmt: skip


def _around(corners: Array) -> Array:
    """Return boxes around points, (count, points, 2); a point without a place after a perspective (0 / 0) is at 0."""
    corners = np.nan_to_num(corners, nan=0)
    return np.concatenate((corners.min(1), corners.max(1)), 1).astype(np.float32)


def extent(size: Size) -> Array:
    """Return the greatest coordinates of a box on a plane."""
    return floats(size[1], size[0], size[1], size[0])


def floats(*numbers: float) -> Array:
    """Return numbers as torch computes with them: float32."""
    return np.array(numbers, np.float32)


def move_points(points: Array, move: Move, size: Size, pairs: Pairs = ()) -> None:
    """Move points (..., 3), x, y and visibility, of a plane of `size`.

    A point is at the middle of its pixel in torchvision's mirrors. One outside the window of a cut is not visible, 0.
    """
    match move:
        case Cut(top, left, height, width):
            points[..., :2] -= floats(left, top)
            _hide(points, (height, width))
        case Warp(matrix, height, width):
            points[..., :2] = np.nan_to_num(warp.warped_points(points[..., :2], matrix), nan=-1)
            _hide(points, (height, width))
        case Displace(field):
            points[..., :2] = field.moved(points[..., :2])
            _hide(points, size)
        case Scale(height, width):
            points[..., :2] *= _ratios(size, (height, width), 1)
        case Mirror(axis):
            at = 0 if axis == COLUMNS else 1
            points[..., at] = np.float32(size[axis] - 1) - points[..., at]
            if axis == COLUMNS:
                for one, other in pairs:
                    points[..., [one, other], :] = points[..., [other, one], :]
        case _:
            pass


def _hide(points: Array, size: Size) -> None:
    outside = (points[..., :2] < 0) | (points[..., :2] >= floats(size[1], size[0]))
    points[..., 2][outside.any(-1)] = 0


def write_points(points: Array, out: Array) -> None:
    """Write points to the first places of a row; those that are not visible, and the places after them, are 0."""
    out[...] = 0
    points = points[: len(out)]
    out[: len(points)] = np.where(points[..., 2:] > 0, points, np.float32(0))


def _ratios(old: Size, new: Size, times: int) -> Array:
    return floats(*(new[1] / old[1], new[0] / old[0]) * times)


class BoxStage(Stage[OpT]):
    """A stage that changes boxes and no pixels."""

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return Drawn(None, height, width, moves=(self.change,))

    @abstractmethod
    def change(self, objects: Objects) -> Objects:
        """Return the boxes as the op leaves them, perhaps the same ones changed; a `BoxChange`."""
