"""How `ColorJitter` is done."""

from functools import partial

from prepserver.pipeline.ops.color_jitter import ColorJitter
from prepserver.transform import color
from prepserver.transform.chance import changing, shuffled
from prepserver.transform.stage import Drawn, Draws, Stage


class ColorJitterStage(Stage[ColorJitter]):
    def __init__(self, op: ColorJitter, place: int) -> None:
        super().__init__(op, place)
        self._parts = (
            (color.brightness, op.brightness, 1.0),
            (color.contrast, op.contrast, 1.0),
            (color.saturation, op.saturation, 1.0),
            (color.hue, op.hue, 0.0),
        )

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        # Four factors and their order: seven numbers, one block of draws.
        drawn = [
            (partial(change, factor=draws.uniform(*limits)), limits == (neutral, neutral))
            for change, limits, neutral in self._parts
        ]
        drawn = [drawn[place] for place in shuffled(len(drawn), draws)]
        changes = [change for change, is_off in drawn if not is_off]
        return changing(changes, height, width)
