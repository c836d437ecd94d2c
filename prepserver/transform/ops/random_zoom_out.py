"""How `RandomZoomOut` is done: a window larger than the image."""

from __future__ import annotations

from prepserver.pipeline.ops.random_zoom_out import RandomZoomOut
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import cut
from prepserver.transform.stage import Drawn, Stage


class RandomZoomOutStage(Stage):
    op = RandomZoomOut
    _op: RandomZoomOut

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        if draws.uniform() >= self._op.p:
            return Drawn(None, height, width)
        ratio = draws.uniform(*self._op.side_range)
        rows, columns = int(height * ratio), int(width * ratio)
        top, left = int((rows - height) * draws.uniform()), int((columns - width) * draws.uniform())
        return cut((-top, -left, rows, columns), (height, width), "constant", self._op.fill)
