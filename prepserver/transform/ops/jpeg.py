"""How `JPEG` is done."""

from __future__ import annotations

from functools import partial

import numpy as np
import simplejpeg

from prepserver.pipeline.ops.jpeg import JPEG
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Array, Drawn, Stage, delivered


class JPEGStage(Stage):
    op = JPEG
    _op: JPEG
    settles = False

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        low, high = self._op.quality
        return Drawn(partial(_compressed, low + draws.below(high - low + 1)), height, width)


def _compressed(quality: int, image: Array, into: Array | None) -> Array:
    colours, subsampling = ("RGB", "420") if image.shape[2] == 3 else ("GRAY", "Gray")
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality, colours, subsampling)
    return delivered(simplejpeg.decode_jpeg(data, colours), into)
