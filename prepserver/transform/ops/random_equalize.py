"""How `RandomEqualize` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.random_equalize import RandomEqualize
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomEqualizeStage(ChanceStage):
    op = RandomEqualize
    _op: RandomEqualize

    def change(self, image: Array) -> Array:
        return tones.equalize(image)
