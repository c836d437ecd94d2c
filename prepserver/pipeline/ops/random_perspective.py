"""`RandomPerspective`: seen from another place at random."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ChanceOp, WarpOp


class RandomPerspective(WarpOp, ChanceOp):
    """Move the image's corners inwards at random, with probability `p`; its size stays.

    Attributes:
        distortion_scale: How far a corner may move, as a share of half the side; 0 to 1.
        p: Probability, 0 to 1.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each.
    """

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: checks.Interpolation = "bilinear",
        fill: checks.FloatOrFloats | None = 0,
    ) -> None:
        self.distortion_scale = checks.number("distortion_scale", distortion_scale, 0.0, 1.0)
        self.p = checks.probability(p)
        super().__init__(interpolation, fill)
