"""How `RandomAutocontrast` is done."""

from prepserver.pipeline.ops.random_autocontrast import RandomAutocontrast
from prepserver.transform import tones
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Array


class RandomAutocontrastStage(ChanceStage[RandomAutocontrast]):
    def change(self, image: Array) -> Array:
        return tones.autocontrast(image)
