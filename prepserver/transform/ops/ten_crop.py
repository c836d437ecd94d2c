"""How `TenCrop` is done: each view takes its own crop."""

from prepserver.pipeline.ops.ten_crop import TenCrop
from prepserver.transform.chance import in_turn
from prepserver.transform.geometry import corner, flipped
from prepserver.transform.moves import COLUMNS, ROWS
from prepserver.transform.stage import Drawn, Draws, Stage


class TenCropStage(Stage[TenCrop]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        crop = corner(draws.view % 5, self._op.size, (height, width))
        if draws.view < 5:
            return crop
        return in_turn([flipped(ROWS if self._op.vertical_flip else COLUMNS, (height, width)), crop], height, width)
