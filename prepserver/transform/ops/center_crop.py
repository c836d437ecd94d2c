"""How `CenterCrop` is done, with torchvision's rounding."""

from __future__ import annotations

from prepserver.pipeline.ops.center_crop import CenterCrop
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import cut
from prepserver.transform.stage import Drawn, Stage


class CenterCropStage(Stage):
    op = CenterCrop
    _op: CenterCrop

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        top, left = _centre(height, self._op.size[0]), _centre(width, self._op.size[1])
        return cut((top, left, *self._op.size), (height, width), "constant", (0.0,))


def _centre(length: int, wanted: int) -> int:
    """Return where the middle `wanted` pixels of `length` begin; below 0 if there are too few.

    torchvision rounds half of a shortfall down and half of a surplus to even; an odd shortfall has its extra pixel at
    the end.
    """
    if wanted > length:
        return -((wanted - length) // 2)
    return round((length - wanted) / 2.0)
