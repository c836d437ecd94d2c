"""How `Only` is done: by the stage of its op, for one column."""

from __future__ import annotations

from prepserver.pipeline.ops.only import Only
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn, Stage


class OnlyStage(Stage):
    op = Only

    def __init__(self, op: Only, place: int) -> None:
        from prepserver.transform.ops import stage_of  # the registry imports this module

        super().__init__(op, place)
        self._inner = stage_of(op.inner, place)
        self.settles = self._inner.settles
        self.column = op.column

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return self._inner.draw(height, width, draws)
