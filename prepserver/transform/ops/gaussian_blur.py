"""How `GaussianBlur` is done."""

from __future__ import annotations

from functools import partial

from prepserver.pipeline.ops.gaussian_blur import GaussianBlur
from prepserver.transform import tones
from prepserver.transform.chance import changed
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn, Stage


class GaussianBlurStage(Stage):
    op = GaussianBlur
    _op: GaussianBlur
    settles = False

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        sigma = draws.uniform(*self._op.sigma)
        blur = partial(tones.gaussian_blur, kernel_size=self._op.kernel_size, sigma=sigma)
        return Drawn(partial(changed, [blur]), height, width)
