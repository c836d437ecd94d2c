"""How `TrivialAugmentWide` is done."""

from prepserver.pipeline.changes import ALL, Scales
from prepserver.pipeline.ops.trivial_augment_wide import TrivialAugmentWide
from prepserver.transform.augment import Changes
from prepserver.transform.stage import Drawn, Draws, Stage


class TrivialAugmentWideStage(Stage[TrivialAugmentWide]):
    def __init__(self, op: TrivialAugmentWide, place: int) -> None:
        super().__init__(op, place)
        scales = Scales(op.num_magnitude_bins, 0.99, 32.0, 135.0, 0.99, (8, 6))
        self._changes = Changes(scales, op.interpolation, op.fill)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        name = ALL[draws.below(len(ALL))]
        return self._changes.draw(name, draws.below(self._op.num_magnitude_bins), height, width, draws)
