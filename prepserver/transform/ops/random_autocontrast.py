"""How `RandomAutocontrast` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.random_autocontrast import RandomAutocontrast
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomAutocontrastStage(ChanceStage):
    op = RandomAutocontrast
    _op: RandomAutocontrast

    def change(self, image: Array) -> Array:
        return tones.autocontrast(image)
