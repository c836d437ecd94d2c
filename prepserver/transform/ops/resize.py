"""How `Resize` is done."""

from prepserver.pipeline.ops.resize import Resize
from prepserver.transform.geometry import resizing
from prepserver.transform.stage import Drawn, Draws, Stage


class ResizeStage(Stage[Resize]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return resizing(self._op.result(height, width), self._op.interpolation, (height, width), self.place)
