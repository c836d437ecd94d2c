"""`ElasticTransform`: as if seen through water."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import WarpOp


class ElasticTransform(WarpOp):
    """Move each pixel a little, and its neighbours alike; the size stays.

    Boxes and keypoints follow approximately, to a pixel, as in torchvision.

    Attributes:
        alpha: Strength of the displacements, 0 to 10000, or one for x and one for y.
        sigma: Standard deviation in pixels of the Gaussian that smooths them, 0 to 100, or one for x and one for y.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each.
    """

    def __init__(
        self,
        alpha: checks.FloatOrFloats = 50.0,
        sigma: checks.FloatOrFloats = 5.0,
        interpolation: checks.Interpolation = "bilinear",
        fill: checks.FloatOrFloats | None = 0,
    ) -> None:
        self.alpha = _for_both("alpha", alpha, 1e4)
        self.sigma = _for_both("sigma", sigma, 100.0)
        super().__init__(interpolation, fill)


def _for_both(field: str, value: object, high: float) -> tuple[float, float]:
    numbers = [checks.number(field, each, 0.0, high) for each in checks.items_or_one(field, value, (1, 2))]
    return numbers[0], numbers[-1]
