"""How `RandomResize` is done."""

from prepserver.pipeline.ops.random_resize import RandomResize
from prepserver.pipeline.ops.resize import Resize
from prepserver.transform.geometry import resizing
from prepserver.transform.stage import Drawn, Draws, Stage


class RandomResizeStage(Stage[RandomResize]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        return self._to(op.min_size + draws.below(op.max_size - op.min_size), height, width)

    def most_scale(self, height: int, width: int) -> int:
        return self._to(self._op.min_size, height, width).scale

    def _to(self, side: int, height: int, width: int) -> Drawn:
        return resizing(Resize(side).result(height, width), self._op.interpolation, (height, width), self.place)
