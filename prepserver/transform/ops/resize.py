"""How `Resize` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.resize import Resize
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import resizing
from prepserver.transform.stage import Drawn, Stage


class ResizeStage(Stage):
    op = Resize
    _op: Resize

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return resizing(self._op.result(height, width), self._op.interpolation, (height, width), self.place)
