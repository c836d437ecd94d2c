"""How `TrivialAugmentWide` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.trivial_augment_wide import TrivialAugmentWide
from prepserver.transform.augment import ALL, Changes
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn, Stage


class TrivialAugmentWideStage(Stage):
    op = TrivialAugmentWide
    _op: TrivialAugmentWide

    def __init__(self, op: TrivialAugmentWide, place: int) -> None:
        super().__init__(op, place)
        self._changes = Changes(op.num_magnitude_bins, 0.99, 32.0, 135.0, 0.99, (8, 6), op.interpolation, op.fill)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        name = ALL[draws.below(len(ALL))]
        return self._changes.draw(name, draws.below(self._op.num_magnitude_bins), height, width, draws)
