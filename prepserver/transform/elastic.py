"""Where each pixel of an elastically deformed image looks: noise, smoothed by a Gaussian.

The noise and the kernel are whole numbers, and their products add up to less than 2**53, so doubles hold every sum
exactly, in any order of summation: a row has the same bytes on every CPU.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from prepserver.pipeline.kinds import Size
from prepserver.transform.noise import Noise
from prepserver.transform.stage import Array
from prepserver.transform.warp import sampled
from prepserver.transform.window import mirrored

_ONE = 1 << 20  # the sum of a kernel's weights

_BLOCK = 64  # places of a line that are smoothed by one matrix


class Displacements:
    """How far from itself each pixel of a plane of `size`, (height, width), looks; computed on first use.

    `key` is that of the noise. `alpha` is the strength in x and in y, as torchvision counts it, and `sigma` the
    standard deviation of the smoothing in x and in y, in pixels.
    """

    def __init__(self, key: int, size: Size, alpha: tuple[float, ...], sigma: tuple[float, ...]) -> None:
        self._key, self._size, self._alpha, self._sigma = key, size, alpha, sigma

    @cached_property
    def steps(self) -> Array:
        """In x and in y, in 256ths of a pixel: (2, height, width), int32."""
        height, width = self._size
        noise = Noise(self._key).uniform(2 * height * width).reshape(2, height, width)
        steps = np.empty((2, height, width), np.int32)
        for each, into, alpha in zip(noise, steps, self._alpha, strict=True):
            self._smooth(each, alpha / 2 / _ONE / _ONE, into)  # torchvision's unit is half a pixel
        return steps

    def _smooth(self, noise: Array, factor: float, into: Array) -> None:
        across, down = (_banded(sigma) for sigma in self._sigma)
        height, width = noise.shape
        right, below = ((matrix.shape[1] - _BLOCK) // 2 for matrix in (across, down))
        columns = mirrored(-right, width + 2 * right, width, "reflect")
        for top in range(0, height, _BLOCK):
            rows = mirrored(top - below, min(_BLOCK, height - top) + 2 * below, height, "reflect")
            part = noise[rows].astype(np.float64) * 2.0 - 255.0  # 256ths of -1 to 1
            part = (down[: len(rows) - 2 * below, : len(rows)] @ part)[:, columns]
            for left in range(0, width, _BLOCK):
                piece = part[:, left : left + _BLOCK + 2 * right]
                mixed = piece @ across[: piece.shape[1] - 2 * right, : piece.shape[1]].T
                into[top : top + _BLOCK, left : left + _BLOCK] = np.rint(mixed * factor)

    def look(self, image: Array, into: Array | None, interpolation: str, fill: tuple[float, ...]) -> Array:
        """Return `image`, (H, W, C), deformed; the other arguments are those of `warp.warp`."""
        result = np.empty_like(image, order="C") if into is None else into
        x = np.arange(self._size[1]) + 0.5

        def shown(top: int, rows: int) -> tuple[Array, Array]:
            aside = self.steps[:, top : top + rows] / 256.0
            return aside[0] + x, aside[1] + (np.arange(top, top + rows) + 0.5)[:, None]

        return sampled(image, shown, interpolation, fill, result)

    def moved(self, points: Array) -> Array:
        """Return where points (..., 2), x and y in whole pixels, are afterwards: about, as in torchvision."""
        x, y = (points[..., axis].clip(0, self._size[1 - axis] - 1).astype(np.intp) for axis in (0, 1))
        moved: Array = np.stack([x, y], axis=-1) - np.moveaxis(self.steps[:, y, x], 0, -1) / 256.0
        return moved


def _banded(sigma: float) -> Array:
    """Return the matrix that smooths `_BLOCK` places of a line: (places, places with those beside them)."""
    reach = int(8 * sigma + 1) // 2  # torchvision's kernel
    weights = [math.exp(-0.5 * (place / sigma) ** 2) if place else 1.0 for place in range(-reach, reach + 1)]
    total = math.fsum(weights)
    kernel = np.array([round(_ONE * weight / total) for weight in weights], np.float64)
    matrix = np.zeros((_BLOCK, _BLOCK + 2 * reach))
    for place in range(_BLOCK):
        matrix[place, place : place + len(kernel)] = kernel
    return matrix
