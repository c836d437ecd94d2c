"""Masks: images of class numbers, from PNG or any other lossless file that Pillow reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prepserver.pipeline.kinds import Kind, Mask, Size
from prepserver.transform.errors import BadSample
from prepserver.transform.follower import Follower
from prepserver.transform.moves import Cut, Displace, Mirror, Move, Scale, Warp
from prepserver.transform.pillow import PillowImage
from prepserver.transform.stage import Array, Box, tiled
from prepserver.transform.warp import warp
from prepserver.transform.window import window


class MaskFollower(Follower):
    """A mask: grey or palette, 8 bits; the numbers of a palette are the classes, its colours are ignored."""

    kind = Mask

    def __init__(self, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
        ((self._column, value),) = values.items()
        self._classes: Array | None = value if isinstance(value, np.ndarray) else None
        self._image = None if self._classes is not None else PillowImage(bytes(value))
        self._failure = ""  # a mask that failed must not be loaded again: see `PillowImage`

    @property
    def size(self) -> Size:
        if self._image is None:
            assert self._classes is not None
            return self._classes.shape[0], self._classes.shape[1]
        return self._image.height, self._image.width

    def moved(self, size: Size, moves: Sequence[Move]) -> dict[str, Any]:
        if self._classes is None:
            self._load()
        assert self._classes is not None
        mask = self._classes[:, :, None]
        for move in moves:
            mask = _moved(mask, move)
        return {self._column: mask[:, :, 0]}

    @classmethod
    def joined(cls, parts: Sequence[Mapping[str, Any]], canvas: Size, places: Sequence[Box]) -> dict[str, Any]:
        return {name: tiled([part[name] for part in parts], canvas, places) for name in parts[0]}

    def make(self, size: Size, moves: Sequence[Move], outs: Mapping[str, Array]) -> None:
        outs[self._column][...] = self.moved(size, moves)[self._column]

    def _load(self) -> None:
        if not self._failure and self._image is not None:
            try:
                self._classes = self._image.classes()
            except BadSample as error:
                self._failure = error.reason
        if self._failure:
            raise BadSample(self._failure)


def _moved(mask: Array, move: Move) -> Array:
    match move:
        case Cut(top, left, height, width, mode, fill):
            return window(mask, (top, left, height, width), mode, _class_of(fill), None)
        case Scale(height, width):
            return mask[_nearest(mask.shape[0], height)][:, _nearest(mask.shape[1], width)]
        case Mirror(axis):
            return np.flip(mask, axis)
        case Warp(matrix, height, width, fill):
            return warp(mask, matrix, (height, width), "nearest", _class_of(fill), None)
        case Displace(field, fill):
            return field.look(mask, "nearest", _class_of(fill), None)
        case _:
            return mask


def _class_of(fill: tuple[float, ...]) -> tuple[float, ...]:
    """Return the class of padding: the number that an image is padded with, or 0 if that is a colour or no class."""
    return fill if len(fill) == 1 and fill[0] in range(256) else (0.0,)


def _nearest(length: int, wanted: int) -> Array:
    """Return which of `length` pixels stands at each of `wanted` places, as torch's ``nearest`` chooses it."""
    return np.arange(wanted) * length // wanted
