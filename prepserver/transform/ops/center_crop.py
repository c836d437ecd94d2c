"""How `CenterCrop` is done, with torchvision's rounding."""

from prepserver.pipeline.ops.center_crop import CenterCrop
from prepserver.transform.geometry import centre, cut
from prepserver.transform.stage import Drawn, Draws, Stage


class CenterCropStage(Stage[CenterCrop]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        top, left = centre(height, self._op.size[0]), centre(width, self._op.size[1])
        return cut((top, left, *self._op.size), (height, width))
