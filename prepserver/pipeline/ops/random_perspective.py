"""`RandomPerspective`: a random perspective."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ChanceOp, WarpOp


class RandomPerspective(WarpOp, ChanceOp):
    """Show the image in a random perspective, with probability `p`.

    Its corners move inwards; its size stays. It is uint8.

    Attributes:
        distortion_scale: How far a corner may move, as a share of half the side; 0 to 1.
        p: Probability, 0 to 1.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value of pixels from beyond the image's edges: one for all channels, or one for each; 0 to 255. None is 0.
        mask_fill: As in `Pad`.
    """

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: checks.Interpolation = "bilinear",
        fill: checks.FloatOrFloats | None = 0,
        mask_fill: int | None = None,
    ) -> None:
        self.distortion_scale = checks.number("distortion_scale", distortion_scale, 0.0, 1.0)
        self.p = checks.probability(p)
        super().__init__(interpolation, fill, mask_fill)
