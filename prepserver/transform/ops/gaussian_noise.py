"""How `GaussianNoise` is done."""

from __future__ import annotations

from functools import partial

import numpy as np

from prepserver.pipeline.ops.gaussian_noise import GaussianNoise
from prepserver.transform.draw import Draws
from prepserver.transform.noise import key_of, normal
from prepserver.transform.stage import Array, Drawn, Stage, delivered


class GaussianNoiseStage(Stage):
    op = GaussianNoise
    _op: GaussianNoise
    settles = False

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return Drawn(partial(self._noisy, key_of(draws)), height, width)

    def _noisy(self, key: int, image: Array, into: Array | None) -> Array:
        op, white = self._op, 255.0 if image.dtype == np.uint8 else 1.0
        noise = normal(key, image.size).reshape(image.shape)
        noise *= np.float32(op.sigma * white)
        noise += np.float32(op.mean * white)
        if image.dtype == np.uint8:  # the noise is cut to whole levels, as in torchvision
            levels = noise.astype(np.int32) + image
            return delivered((levels.clip(0, 255) if op.clip else levels).astype(np.uint8), into)
        noise += image
        return delivered((noise.clip(0.0, 1.0) if op.clip else noise).astype(image.dtype, copy=False), into)
