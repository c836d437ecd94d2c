"""How `Grayscale` is done."""

from __future__ import annotations

from functools import partial

import torch

from prepserver.pipeline.ops.grayscale import Grayscale
from prepserver.transform import color
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Array, Drawn, Stage, delivered


class GrayscaleStage(Stage):
    """Grayscale."""

    op = Grayscale

    def __init__(self, op: Grayscale, place: int) -> None:
        super().__init__(op, place)
        self._channels = op.num_output_channels

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Nothing to decide."""
        return Drawn(partial(_grey, self._channels), height, width)


def _grey(channels: int, image: Array, into: Array | None) -> Array:
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    grey = color.grey(pixels) if pixels.shape[0] == 3 else pixels
    return delivered(grey.expand(channels, -1, -1).permute(1, 2, 0).contiguous().numpy(), into)
