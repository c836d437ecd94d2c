"""Keypoints without boxes, such as the landmarks of one face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prepserver.pipeline.kinds import Keypoints, Kind, Size
from prepserver.transform.follower import Follower
from prepserver.transform.kinds.boxes import checked_floats
from prepserver.transform.moves import Cut, Move, Scale, Warp
from prepserver.transform.objects import floats, move_points, write_points
from prepserver.transform.stage import Array, Box


class KeypointsFollower(Follower):
    """Points as x, y and visibility, in pixels of the upright image. `BoxesFollower` moves those of boxes."""

    kind = Keypoints

    def __init__(self, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
        ((self._column, given),) = values.items()
        points, size = given if isinstance(given, tuple) else (given, None)
        self.size = size
        self._points = checked_floats(points, (3,))

    def moved(self, size: Size, moves: Sequence[Move]) -> dict[str, Any]:
        points = self._points.copy()
        for move in moves:
            move_points(points, move, size)
            size = (move.height, move.width) if isinstance(move, Cut | Scale | Warp) else size
        return {self._column: (points, size)}

    @classmethod
    def joined(cls, parts: Sequence[Mapping[str, Any]], canvas: Size, places: Sequence[Box]) -> dict[str, Any]:
        (column,) = parts[0]
        points = [part[column][0] + floats(place.left, place.top, 0) for part, place in zip(parts, places, strict=True)]
        return {column: (np.concatenate(points), canvas)}

    def make(self, size: Size, moves: Sequence[Move], outs: Mapping[str, Array]) -> None:
        write_points(self.moved(size, moves)[self._column][0], outs[self._column])
