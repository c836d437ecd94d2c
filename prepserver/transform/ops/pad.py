"""How `Pad` is done: a window larger than the image."""

from prepserver.pipeline.ops.pad import Pad
from prepserver.transform.geometry import cut
from prepserver.transform.stage import Drawn, Draws, Stage


class PadStage(Stage[Pad]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        left, top, right, bottom = self._op.padding
        box = (-top, -left, height + top + bottom, width + left + right)
        return cut(box, (height, width), self._op.padding_mode, self._op.fill)
