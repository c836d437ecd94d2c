"""How `RandomInvert` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.random_invert import RandomInvert
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomInvertStage(ChanceStage):
    op = RandomInvert
    _op: RandomInvert

    def change(self, image: Array) -> Array:
        return tones.invert(image)
