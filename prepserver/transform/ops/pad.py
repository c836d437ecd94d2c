"""How `Pad` is done: a window larger than the image."""

from __future__ import annotations

from prepserver.pipeline.ops.pad import Pad
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import cut
from prepserver.transform.stage import Drawn, Stage


class PadStage(Stage):
    """Pad: a window larger than the image."""

    op = Pad

    def __init__(self, op: Pad, place: int) -> None:
        super().__init__(op, place)
        self._op = op

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Add the margins."""
        left, top, right, bottom = self._op.padding
        box = (-top, -left, height + top + bottom, width + left + right)
        return cut(box, (height, width), self._op.padding_mode, self._op.fill)
