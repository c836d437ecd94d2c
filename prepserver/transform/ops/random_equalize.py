"""How `RandomEqualize` is done."""

from prepserver.pipeline.ops.random_equalize import RandomEqualize
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomEqualizeStage(ChanceStage[RandomEqualize]):
    def change(self, image: Array) -> Array:
        return tones.equalize(image)
