"""How `RandomOrder` is done."""

from prepserver.pipeline.ops.random_order import RandomOrder
from prepserver.transform.chance import NestingStage, shuffled
from prepserver.transform.stage import Drawn, Draws


class RandomOrderStage(NestingStage[RandomOrder]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        order = shuffled(len(self._inner), draws)
        return self._all([self._inner[place] for place in order], height, width, draws)
