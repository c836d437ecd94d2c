"""How `ScaleJitter` is done."""

from prepserver.pipeline.ops.scale_jitter import ScaleJitter
from prepserver.transform.geometry import resizing
from prepserver.transform.stage import Drawn, Draws, Stage


class ScaleJitterStage(Stage[ScaleJitter]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return self._to(draws.uniform(*self._op.scale_range), height, width)

    def most_scale(self, height: int, width: int) -> int:
        return self._to(self._op.scale_range[0], height, width).scale

    def _to(self, scale: float, height: int, width: int) -> Drawn:
        op = self._op
        # torchvision takes its target as (width, height) here
        ratio = min(op.target_size[1] / height, op.target_size[0] / width) * scale
        size = max(1, int(height * ratio)), max(1, int(width * ratio))
        return resizing(size, op.interpolation, (height, width), self.place)
