"""How `RandomAdjustSharpness` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.random_adjust_sharpness import RandomAdjustSharpness
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomAdjustSharpnessStage(ChanceStage):
    op = RandomAdjustSharpness
    _op: RandomAdjustSharpness

    def change(self, image: Array) -> Array:
        return tones.sharpness(image, self._op.sharpness_factor)
