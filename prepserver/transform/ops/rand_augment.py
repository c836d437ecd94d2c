"""How `RandAugment` is done."""

from prepserver.pipeline.changes import ALL
from prepserver.pipeline.ops.rand_augment import RandAugment
from prepserver.transform.augment import Changes
from prepserver.transform.chance import in_turn
from prepserver.transform.stage import Drawn, Draws, Stage


class RandAugmentStage(Stage[RandAugment]):
    def __init__(self, op: RandAugment, place: int) -> None:
        super().__init__(op, place)
        self._changes = Changes(op.scales, op.interpolation, op.fill)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        decisions: list[Drawn] = []
        for _ in range(self._op.num_ops):
            name = ALL[draws.below(len(ALL))]
            decisions.append(self._changes.draw(name, self._op.magnitude, height, width, draws))
        return in_turn(decisions, height, width)
