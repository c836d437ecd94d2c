"""How `FiveCrop` is done: each view takes its own crop."""

from __future__ import annotations

from prepserver.pipeline.ops.five_crop import FiveCrop
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import corner
from prepserver.transform.stage import Drawn, Stage


class FiveCropStage(Stage):
    op = FiveCrop
    _op: FiveCrop

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return corner(draws.view, self._op.size, (height, width))
