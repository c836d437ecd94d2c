"""How `GaussianNoise` is done."""

from functools import partial

import numpy as np

from prepserver.pipeline.ops.gaussian_noise import GaussianNoise
from prepserver.transform.noise import Noise
from prepserver.transform.stage import Array, Drawn, Draws, Stage, delivered

_BAND_VALUES = 1 << 16
"""Values that are computed at once; part of what the noise is, because it ends with a whole word."""


class GaussianNoiseStage(Stage[GaussianNoise]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return Drawn(partial(self._noisy, draws.key()), height, width)

    def _noisy(self, key: int, image: Array, into: Array | None) -> Array:
        values = np.ascontiguousarray(image).reshape(-1)
        result, noise = np.empty_like(values), Noise(key)
        for start in range(0, len(values), _BAND_VALUES):
            band = values[start : start + _BAND_VALUES]
            result[start : start + len(band)] = self._band(band, noise.normal(len(band)))
        return delivered(result.reshape(image.shape), into)

    def _band(self, values: Array, noise: Array) -> Array:
        is_bytes = values.dtype == np.uint8
        white = 255.0 if is_bytes else 1.0
        noise *= np.float32(self._op.sigma * white)
        noise += np.float32(self._op.mean * white)
        total: Array = (noise.astype(np.int32) if is_bytes else noise) + values  # whole levels, as in torchvision
        return (total.clip(0, int(white)) if self._op.clip else total).astype(values.dtype)
