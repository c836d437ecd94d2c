"""How `RandomPosterize` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.random_posterize import RandomPosterize
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomPosterizeStage(ChanceStage):
    op = RandomPosterize
    _op: RandomPosterize

    def change(self, image: Array) -> Array:
        return tones.posterize(image, self._op.bits)
