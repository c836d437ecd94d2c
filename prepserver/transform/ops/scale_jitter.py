"""How `ScaleJitter` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.scale_jitter import ScaleJitter
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import resizing
from prepserver.transform.stage import Drawn, Stage


class ScaleJitterStage(Stage):
    op = ScaleJitter
    _op: ScaleJitter

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        # torchvision takes its target as (width, height) here
        ratio = min(op.target_size[1] / height, op.target_size[0] / width) * draws.uniform(*op.scale_range)
        size = max(1, int(height * ratio)), max(1, int(width * ratio))
        return resizing(size, op.interpolation, (height, width), self.place)
