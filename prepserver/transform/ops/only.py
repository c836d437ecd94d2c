"""How `Only` is done: by the stage of its op, for one column."""

from prepserver.pipeline.ops.only import Only
from prepserver.transform.stage import FIRST, NOT_FIRST, Drawn, Draws, Stage


class OnlyStage(Stage[Only]):
    """See above; `is_first` if no other stage has changed its column: then it gets the image as it is decoded."""

    def __init__(self, op: Only, place: int, is_first: bool = False) -> None:
        from prepserver.transform.ops import stage_of  # the registry imports this module

        super().__init__(op, place)
        self._inner = stage_of(op.inner, FIRST if is_first else NOT_FIRST)
        self.column = op.column

    def most_scale(self, height: int, width: int) -> int:
        return self._inner.most_scale(height, width)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return self._inner.draw(height, width, draws)
