"""How `RandomChoice` is done."""

from itertools import accumulate

from prepserver.pipeline.ops.random_choice import RandomChoice
from prepserver.transform.chance import NestingStage
from prepserver.transform.stage import Drawn, Draws


class RandomChoiceStage(NestingStage[RandomChoice]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        sums = list(accumulate(self._op.p or [1.0] * len(self._inner)))
        drawn = draws.uniform(0.0, sums[-1])
        chosen = next(stage for stage, upto in zip(self._inner, sums, strict=True) if drawn < upto)
        return self._all([chosen], height, width, draws)
