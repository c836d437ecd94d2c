"""`RandAugment`: several random changes of one strength."""

from prepserver.pipeline import checks
from prepserver.pipeline.changes import Scales
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import WarpOp


class RandAugment(WarpOp):
    """Apply `num_ops` random changes of geometry and colour, all of one strength (RandAugment, Cubuk et al., 2020).

    The image is uint8 and keeps its size. Masks, boxes and keypoints follow the changes of geometry.

    Attributes:
        num_ops: Number of changes, one after the other; 0 to 32.
        magnitude: Strength, from 0 to `num_magnitude_bins` - 1.
        num_magnitude_bins: Number of steps on the scale of strengths, 2 to 1000.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value of pixels from beyond the image's edges: one for all channels, or one for each; 0 to 255. None is 0.
        mask_fill: As in `Pad`.
    """

    needs_uint8 = True

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: checks.Interpolation = "nearest",
        fill: checks.FloatOrFloats | None = None,
        mask_fill: int | None = None,
    ) -> None:
        self.num_ops = checks.integer("num_ops", num_ops, 0, 32)
        self.magnitude = checks.integer("magnitude", magnitude, 0, 999)
        self.num_magnitude_bins = checks.integer("num_magnitude_bins", num_magnitude_bins, 2, 1000)
        super().__init__(interpolation, fill, mask_fill)
        if self.magnitude >= self.num_magnitude_bins:
            raise SpecError("magnitude", magnitude, f"must be below num_magnitude_bins ({self.num_magnitude_bins})")

    @property
    def scales(self) -> Scales:
        """How strong each change is."""
        return Scales(self.num_magnitude_bins, 0.3, 150.0 / 331.0, 30.0, 0.9, (8, 4))
