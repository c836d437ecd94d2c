"""How `Grayscale` is done."""

from __future__ import annotations

import torch

from prepserver.pipeline.ops.grayscale import Grayscale
from prepserver.transform import color
from prepserver.transform.stage import Array, ValueStage, delivered


class GrayscaleStage(ValueStage):
    op = Grayscale
    _op: Grayscale

    def step(self, image: Array, into: Array | None) -> Array:
        pixels = torch.from_numpy(image).permute(2, 0, 1)
        grey = color.grey(pixels) if pixels.shape[0] == 3 else pixels
        grey = grey.expand(self._op.num_output_channels, -1, -1)
        return delivered(grey.permute(1, 2, 0).contiguous().numpy(), into)
