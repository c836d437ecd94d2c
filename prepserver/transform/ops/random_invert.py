"""How `RandomInvert` is done."""

from prepserver.pipeline.ops.random_invert import RandomInvert
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomInvertStage(ChanceStage[RandomInvert]):
    def change(self, image: Array) -> Array:
        return tones.invert(image)
