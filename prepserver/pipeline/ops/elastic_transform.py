"""`ElasticTransform`: smooth random displacements."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import WarpOp


class ElasticTransform(WarpOp):
    """Displace pixels by smoothed noise, as if the image were seen through water (Simard et al., 2003).

    The size stays. The image is uint8. Boxes and keypoints follow to within a pixel, as in torchvision.

    Attributes:
        alpha: Strength of the displacements, 0 to 10000; a pair is for x and y.
        sigma: Standard deviation in pixels of the Gaussian that smooths them, 0 to 100; a pair is for x and y.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value of pixels from beyond the image's edges: one for all channels, or one for each; 0 to 255. None is 0.
        mask_fill: As in `Pad`.
    """

    def __init__(
        self,
        alpha: checks.FloatOrFloats = 50.0,
        sigma: checks.FloatOrFloats = 5.0,
        interpolation: checks.Interpolation = "bilinear",
        fill: checks.FloatOrFloats | None = 0,
        mask_fill: int | None = None,
    ) -> None:
        self.alpha = _for_both("alpha", alpha, 1e4)
        self.sigma = _for_both("sigma", sigma, 100.0)
        super().__init__(interpolation, fill, mask_fill)


def _for_both(field: str, value: object, high: float) -> tuple[float, float]:
    numbers = [checks.number(field, each, 0.0, high) for each in checks.items_or_one(field, value, (1, 2))]
    return numbers[0], numbers[-1]
