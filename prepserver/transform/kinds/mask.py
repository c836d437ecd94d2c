"""Masks: images of numbers, from PNG or any other lossless file that Pillow reads, or from .npy files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from prepserver.npy import NPY
from prepserver.pipeline.kinds import Image, Kind, Mask, Size
from prepserver.transform.errors import BadSample
from prepserver.transform.follower import Follower
from prepserver.transform.moves import Cut, Displace, Mirror, Move, Scale, Warp
from prepserver.transform.pillow import PillowImage
from prepserver.transform.pixels import npy_pixels
from prepserver.transform.stage import Array, Box, tiled
from prepserver.transform.warp import warp
from prepserver.transform.window import window


class MaskFollower(Follower):
    """A mask: grey or palette, 8 or 16 bits; the numbers of a palette are the classes, its colours are ignored."""

    kind = Mask

    def __init__(self, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
        ((self._column, value),) = values.items()
        kind = kinds[self._column]
        assert isinstance(kind, Mask)
        if isinstance(value, bytes) and value.startswith(NPY):
            due = f"it is declared as a mask (H, W) of dtype {kind.dtype}"
            value = npy_pixels(value, Image(kind.size, 1, kind.dtype), due)[:, :, 0]
        if isinstance(value, np.ndarray):
            self._numbers: Callable[[], Array] = lambda: value
            self.size = value.shape[0], value.shape[1]
        else:
            image = PillowImage(bytes(value))
            self._numbers = partial(image.numbers, kind.dtype)
            self.size = image.height, image.width

    def moved(self, size: Size, moves: Sequence[Move]) -> dict[str, Any]:
        mask = self._numbers()[:, :, None]
        for move in moves:
            mask = _moved(mask, move)
        return {self._column: mask[:, :, 0]}

    @classmethod
    def joined(cls, parts: Sequence[Mapping[str, Any]], canvas: Size, places: Sequence[Box]) -> dict[str, Any]:
        return {name: tiled([part[name] for part in parts], canvas, places) for name in parts[0]}

    def make(self, size: Size, moves: Sequence[Move], outs: Mapping[str, Array]) -> None:
        mask, out = self.moved(size, moves)[self._column], outs[self._column]
        if mask.shape != out.shape:
            raise BadSample(f"has {mask.shape} pixels (height, width), and rows of {out.shape} are declared")
        out[...] = mask


def _moved(mask: Array, move: Move) -> Array:
    match move:
        case Cut(top, left, height, width, mode, fill):
            return window(mask, None, (top, left, height, width), mode, _class_of(fill, mask))
        case Scale(height, width):
            return mask[_nearest(mask.shape[0], height)][:, _nearest(mask.shape[1], width)]
        case Mirror(axis):
            return np.flip(mask, axis)
        case Warp(matrix, height, width, fill):
            return warp(mask, None, matrix, (height, width), "nearest", _class_of(fill, mask))
        case Displace(field, fill):
            return field.look(mask, None, "nearest", _class_of(fill, mask))
        case _:
            return mask


def _class_of(fill: tuple[float, ...], mask: Array) -> tuple[float, ...]:
    """Return the class of padding: the number that an image is padded with, or 0 if that is a colour or no class."""
    return fill if len(fill) == 1 and fill[0] in range(np.iinfo(mask.dtype).max + 1) else (0.0,)


def _nearest(length: int, wanted: int) -> Array:
    """Return which of `length` pixels stands at each of `wanted` places, as torch's ``nearest`` chooses it."""
    return np.arange(wanted) * length // wanted
