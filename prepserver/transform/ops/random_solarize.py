"""How `RandomSolarize` is done."""

from prepserver.pipeline.ops.random_solarize import RandomSolarize
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomSolarizeStage(ChanceStage[RandomSolarize]):
    def change(self, image: Array) -> Array:
        return tones.solarize(image, self._op.threshold)
