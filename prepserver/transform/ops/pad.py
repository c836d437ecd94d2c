"""How `Pad` is done: a window larger than the image."""

from __future__ import annotations

from prepserver.pipeline.ops.pad import Pad
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import cut
from prepserver.transform.stage import Drawn, Stage


class PadStage(Stage):
    op = Pad
    _op: Pad

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        left, top, right, bottom = self._op.padding
        box = (-top, -left, height + top + bottom, width + left + right)
        return cut(box, (height, width), self._op.padding_mode, self._op.fill)
