"""How `RandomShortestSize` is done."""

from prepserver.pipeline.ops.random_shortest_size import RandomShortestSize
from prepserver.transform.geometry import resizing
from prepserver.transform.stage import Drawn, Draws, Stage


class RandomShortestSizeStage(Stage[RandomShortestSize]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return self._to(self._op.min_size[draws.below(len(self._op.min_size))], height, width)

    def most_scale(self, height: int, width: int) -> int:
        return self._to(min(self._op.min_size), height, width).scale

    def _to(self, side: int, height: int, width: int) -> Drawn:
        op, ratio = self._op, side / min(height, width)
        if op.max_size is not None:
            ratio = min(ratio, op.max_size / max(height, width))
        size = max(1, int(height * ratio)), max(1, int(width * ratio))
        return resizing(size, op.interpolation, (height, width), self.place)
