"""How `RandomZoomOut` is done: a window larger than the image."""

from prepserver.pipeline.ops.random_zoom_out import RandomZoomOut
from prepserver.transform.chance import ChanceStage
from prepserver.transform.geometry import cut
from prepserver.transform.stage import Drawn, Draws


class RandomZoomOutStage(ChanceStage[RandomZoomOut]):
    def chosen(self, height: int, width: int, draws: Draws) -> Drawn:
        ratio = draws.uniform(*self._op.side_range)
        rows, columns = int(height * ratio), int(width * ratio)
        top, left = int((rows - height) * draws.uniform()), int((columns - width) * draws.uniform())
        return cut((-top, -left, rows, columns), (height, width), fill=self._op.fill)
