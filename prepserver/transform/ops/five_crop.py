"""How `FiveCrop` is done: each view takes its own crop."""

from prepserver.pipeline.ops.five_crop import FiveCrop
from prepserver.transform.geometry import corner
from prepserver.transform.stage import Drawn, Draws, Stage


class FiveCropStage(Stage[FiveCrop]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return corner(draws.view, self._op.size, (height, width))
