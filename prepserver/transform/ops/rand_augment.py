"""How `RandAugment` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.rand_augment import RandAugment
from prepserver.transform.augment import ALL, Changes
from prepserver.transform.chance import in_turn
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn, Stage


class RandAugmentStage(Stage):
    op = RandAugment
    _op: RandAugment

    def __init__(self, op: RandAugment, place: int) -> None:
        super().__init__(op, place)
        self._changes = Changes(op.num_magnitude_bins, 0.3, 150.0 / 331.0, 30.0, 0.9, (8, 4), op.interpolation, op.fill)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        decisions: list[Drawn] = []
        for _ in range(self._op.num_ops):
            name = ALL[draws.below(len(ALL))]
            decisions.append(self._changes.draw(name, self._op.magnitude, height, width, draws))
        return in_turn(decisions, height, width)
