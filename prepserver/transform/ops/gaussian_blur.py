"""How `GaussianBlur` is done."""

from functools import partial

from prepserver.pipeline.ops.gaussian_blur import GaussianBlur
from prepserver.transform import tones
from prepserver.transform.chance import changing
from prepserver.transform.stage import Drawn, Draws, Stage


class GaussianBlurStage(Stage[GaussianBlur]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        sigma = draws.uniform(*self._op.sigma)
        blur = partial(tones.gaussian_blur, kernel_size=self._op.kernel_size, sigma=sigma)
        return changing([blur], height, width)
