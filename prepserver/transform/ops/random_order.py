"""How `RandomOrder` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.random_order import RandomOrder
from prepserver.transform.chance import shuffled
from prepserver.transform.draw import Draws
from prepserver.transform.nesting import NestingStage
from prepserver.transform.stage import Drawn


class RandomOrderStage(NestingStage):
    op = RandomOrder
    _op: RandomOrder

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        order = shuffled(len(self._inner), draws)
        return self._all([self._inner[place] for place in order], height, width, draws)
