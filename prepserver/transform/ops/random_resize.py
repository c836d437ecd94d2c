"""How `RandomResize` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.random_resize import RandomResize
from prepserver.pipeline.ops.resize import Resize
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import resizing
from prepserver.transform.stage import Drawn, Stage


class RandomResizeStage(Stage):
    op = RandomResize
    _op: RandomResize

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        side = op.min_size + draws.below(op.max_size - op.min_size)
        return resizing(Resize(side).result(height, width), op.interpolation, (height, width), self.place)
