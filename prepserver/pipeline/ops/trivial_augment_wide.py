"""`TrivialAugmentWide`: one random change of random strength."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import WarpOp


class TrivialAugmentWide(WarpOp):
    """Apply one random change of shape or colour, of random strength. Masks follow the changes of shape.

    Attributes:
        num_magnitude_bins: Steps of the scale of strengths, 2 to 1000.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each. None means 0.
    """

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: checks.Interpolation = "nearest",
        fill: checks.FloatOrFloats | None = None,
    ) -> None:
        self.num_magnitude_bins = checks.integer("num_magnitude_bins", num_magnitude_bins, 2, 1000)
        super().__init__(interpolation, fill)
