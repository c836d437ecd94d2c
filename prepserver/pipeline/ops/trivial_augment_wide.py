"""`TrivialAugmentWide`: one random change of random strength."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import WarpOp


class TrivialAugmentWide(WarpOp):
    """Apply one random change of geometry or colour, of random strength (TrivialAugment, Müller and Hutter, 2021).

    The image is uint8 and keeps its size. Masks, boxes and keypoints follow a change of geometry. The ranges of
    strength are those of the paper's "wide" space.

    Attributes:
        num_magnitude_bins: Number of steps on the scale of strengths, 2 to 1000.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value of pixels from beyond the image's edges: one for all channels, or one for each; 0 to 255. None is 0.
        mask_fill: As in `Pad`.
    """

    needs_uint8 = True

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: checks.Interpolation = "nearest",
        fill: checks.FloatOrFloats | None = None,
        mask_fill: int | None = None,
    ) -> None:
        self.num_magnitude_bins = checks.integer("num_magnitude_bins", num_magnitude_bins, 2, 1000)
        super().__init__(interpolation, fill, mask_fill)
