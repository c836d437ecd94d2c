"""How `JPEG` is done."""

import io
from functools import partial

import numpy as np
import simplejpeg
from PIL import Image as Picture

from prepserver.pipeline.ops.jpeg import JPEG
from prepserver.transform.errors import BadSample
from prepserver.transform.stage import Array, Drawn, Draws, Stage, delivered

_LONGEST_PX = 65500
"""Longest side that libjpeg encodes; beyond it Pillow raises an OSError, which would be taken for a shortage."""


class JPEGStage(Stage[JPEG]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        if max(height, width) > _LONGEST_PX:
            raise BadSample(f"{height}x{width} pixels are too many for JPEG(), which takes {_LONGEST_PX} a side")
        low, high = self._op.quality
        return Drawn(partial(_compressed, low + draws.below(high - low + 1)), height, width)


def _compressed(quality: int, image: Array, into: Array | None) -> Array:
    file = io.BytesIO()
    Picture.fromarray(np.ascontiguousarray(image.squeeze(2) if image.shape[2] == 1 else image)).save(
        file, "JPEG", quality=quality
    )
    return delivered(simplejpeg.decode_jpeg(file.getvalue(), "RGB" if image.shape[2] == 3 else "GRAY"), into)
