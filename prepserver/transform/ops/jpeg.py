"""How `JPEG` is done."""

from __future__ import annotations

import io
from functools import partial

import numpy as np
import simplejpeg
from PIL import Image as Picture

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
    file = io.BytesIO()
    Picture.fromarray(np.ascontiguousarray(image.squeeze(2) if image.shape[2] == 1 else image)).save(
        file, "JPEG", quality=quality
    )
    return delivered(simplejpeg.decode_jpeg(file.getvalue(), "RGB" if image.shape[2] == 3 else "GRAY"), into)
