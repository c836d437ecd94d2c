"""`GaussianBlur`: a random blur."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op


class GaussianBlur(Op):
    """Blur with a Gaussian kernel of random width. The image is uint8, and is reflected beyond its edges.

    Attributes:
        kernel_size: (width, height) of the kernel in pixels, odd, at most 255; an int means a square.
        sigma: Least and greatest standard deviation in pixels, 0.001 to 1000; a number is both.
    """

    needs_uint8 = True

    def __init__(self, kernel_size: checks.IntOrInts, sigma: checks.FloatOrFloats = (0.1, 2.0)) -> None:
        given = checks.items_or_one("kernel_size", kernel_size, (1, 2))
        sides = [checks.integer("kernel_size", each, 1, 255) for each in given]
        if any(side % 2 == 0 for side in sides):
            raise SpecError("kernel_size", kernel_size, "must be odd")
        span = checks.items_or_one("sigma", sigma, (1, 2))
        self.kernel_size = sides[0], sides[-1]
        self.sigma = checks.number_range("sigma", (span[0], span[-1]), 1e-3, 1e3)
