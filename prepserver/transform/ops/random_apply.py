"""How `RandomApply` is done."""

from prepserver.pipeline.ops.random_apply import RandomApply
from prepserver.transform.chance import NestingStage
from prepserver.transform.stage import Drawn, Draws


class RandomApplyStage(NestingStage[RandomApply]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        if draws.uniform() >= self._op.p:
            return Drawn(None, height, width)
        return self._all(self._inner, height, width, draws)
