"""How `RandomAdjustSharpness` is done."""

from prepserver.pipeline.ops.random_adjust_sharpness import RandomAdjustSharpness
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomAdjustSharpnessStage(ChanceStage[RandomAdjustSharpness]):
    def change(self, image: Array) -> Array:
        return tones.sharpness(image, self._op.sharpness_factor)
