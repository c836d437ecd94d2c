"""`RandomAdjustSharpness`: sharper or softer at random."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ChanceOp


class RandomAdjustSharpness(ChanceOp):
    """Blend the image with a smoothed copy, with probability `p`. The image is uint8; its edge pixels stay.

    Attributes:
        sharpness_factor: 0 is the smoothed copy, 1 changes nothing, 2 is twice as sharp; at most 1000.
        p: Probability, 0 to 1.
    """

    needs_uint8 = True

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.sharpness_factor = checks.number("sharpness_factor", sharpness_factor, 0.0, 1e3)
