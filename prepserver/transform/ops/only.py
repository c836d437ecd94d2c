"""How `Only` is done: by the stage of its op, for one column."""

from prepserver.pipeline.ops.only import Only
from prepserver.transform.stage import Drawn, Draws, Stage


class OnlyStage(Stage[Only]):
    def __init__(self, op: Only, place: int) -> None:
        from prepserver.transform.ops import stage_of  # the registry imports this module

        super().__init__(op, place)
        self._inner = stage_of(op.inner, place)
        self.column = op.column

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return self._inner.draw(height, width, draws)
