"""`RandomZoomOut`: the image on a larger canvas."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ChanceOp


class RandomZoomOut(ChanceOp):
    """Put the image at a random place on a larger canvas, with probability `p` (SSD, Liu et al., 2016).

    Attributes:
        fill: Value of the canvas: one for all channels, or one for each.
        side_range: Range of the canvas's side in sides of the image, 1 to 16.
        p: Probability, 0 to 1.
        mask_fill: As in `Pad`.
    """

    moves = True
    varies = True

    def __init__(
        self,
        fill: checks.FloatOrFloats = 0,
        side_range: checks.Floats = (1.0, 4.0),
        p: float = 0.5,
        mask_fill: int | None = None,
    ) -> None:
        self.fill = checks.fill("fill", fill)
        self.side_range = checks.number_range("side_range", side_range, 1.0, 16.0)
        super().__init__(p)
        self.mask_fill = checks.mask_fill(mask_fill)
