"""How `RandomPosterize` is done."""

from prepserver.pipeline.ops.random_posterize import RandomPosterize
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomPosterizeStage(ChanceStage[RandomPosterize]):
    def change(self, image: Array) -> Array:
        return tones.posterize(image, self._op.bits)
