"""Boxes with their labels, keypoints and other numbers, which all go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prepserver.pipeline.kinds import Boxes, Keypoints, Kind, Size
from prepserver.transform.errors import BadSample
from prepserver.transform.follower import Follower
from prepserver.transform.moves import Move
from prepserver.transform.objects import Objects, Pairs, floats, write_points
from prepserver.transform.stage import Array, Box


class BoxesFollower(Follower):
    """Boxes as left, top, right, bottom in pixels of the upright image; they may reach over its edges."""

    kind = Boxes

    def __init__(self, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
        self._points: dict[str, Array] = {}
        self._pairs: dict[str, Pairs] = {}
        self._numbers: dict[str, Array] = {}
        for name, value in values.items():
            kind = kinds[name]
            if isinstance(kind, Boxes):
                self._column = name
                boxes, self.size = value if isinstance(value, tuple) else (value, None)
                self._boxes = checked_floats(boxes, (4,))
            elif isinstance(kind, Keypoints):
                self._points[name], self._pairs[name] = checked_floats(value, (kind.each or 0, 3)), kind.pairs
            else:
                self._numbers[name] = value
        if np.count_nonzero(self._boxes[:, 2:] < self._boxes[:, :2]):
            raise BadSample("a box ends before it begins: boxes are left, top, right, bottom")
        count = len(self._boxes)
        for each in (self._numbers, self._points):
            for name, value in each.items():
                if len(value) != count:
                    raise BadSample(f"{count} boxes and {len(value)} {name}")

    def objects(self, size: Size) -> Objects:
        """Return the boxes on a plane of this size in pixels, before any move."""
        return Objects(size, self._boxes, self._points, self._numbers, self._pairs)

    def moved(self, size: Size, moves: Sequence[Move]) -> dict[str, Any]:
        objects = self.objects(size).after(moves)
        return {self._column: (objects.boxes, objects.size), **objects.points, **objects.numbers}

    @classmethod
    def joined(cls, parts: Sequence[Mapping[str, Any]], canvas: Size, places: Sequence[Box]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, first in parts[0].items():
            if isinstance(first, tuple):
                shifts = [floats(place.left, place.top, place.left, place.top) for place in places]
                boxes = [part[name][0] + shift for part, shift in zip(parts, shifts, strict=True)]
                made[name] = np.concatenate(boxes), canvas
            elif np.ndim(first) == 3:
                points = [part[name] + floats(at.left, at.top, 0) for part, at in zip(parts, places, strict=True)]
                made[name] = np.concatenate(points)
            else:
                made[name] = np.concatenate([part[name] for part in parts])
        return made

    def make(self, size: Size, moves: Sequence[Move], outs: Mapping[str, Array]) -> None:
        objects = self.objects(size).after(moves)
        count = min(len(objects.boxes), len(outs[self._column]))
        for name, out in outs.items():
            if name == self._column:
                out[:count], out[count:] = objects.boxes[:count], 0
            elif name in objects.points:
                write_points(objects.points[name], out)
            elif name in objects.numbers:
                out[:count], out[count:] = objects.numbers[name][:count], -1
            else:
                out[...] = count


def checked_floats(value: Any, inner: tuple[int, ...]) -> Array:
    """Return boxes or points as (count, *inner), float32; raises `BadSample` if they are none, or not finite."""
    found: Array = np.asarray(value, np.float32)
    if found.shape[1:] != inner or np.count_nonzero(np.isfinite(found)) != found.size:
        what = "has a number that is not finite" if found.shape[1:] == inner else f"is of shape {found.shape}"
        raise BadSample(f"{what}; must be finite numbers of shape {('n', *inner)}".replace("'", ""))
    return found
