"""How `Resize` is done."""

from __future__ import annotations

from functools import partial

from prepserver.pipeline.ops.resize import Resize
from prepserver.transform.draw import Draws
from prepserver.transform.geometry import resized
from prepserver.transform.moves import Scale
from prepserver.transform.scale import divisor, scale_for
from prepserver.transform.stage import FIRST, Drawn, Stage


class ResizeStage(Stage):
    op = Resize
    _op: Resize

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        size = self._op.result(height, width)
        if size == (height, width):
            return Drawn(None, *size)
        step, mirrored = (partial(resized, size, self._op.interpolation, mirror) for mirror in (False, True))
        # No pixel may be left out, so the scale must divide both sides.
        scale = divisor(height, width, scale_for(height, width, size)) if self.place == FIRST else 1
        return Drawn(step, *size, None, mirrored, scale, (Scale(*size),))
