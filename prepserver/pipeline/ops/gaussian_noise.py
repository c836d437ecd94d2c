"""`GaussianNoise`: normally distributed noise."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op


class GaussianNoise(Op):
    """Add normally distributed noise to each value. The dtype stays.

    Attributes:
        mean: Mean of the noise, -1000 to 1000, where 1 is white: 255 for uint8, 1.0 for floats.
        sigma: Standard deviation of the noise, 0 to 1000, in the same unit.
        clip: Clip the result to 0..255 for uint8, and to 0..1 for floats, whose values must lie in 0..1 before. False
            lets bytes wrap around, as in torchvision.
    """

    def __init__(self, mean: float = 0.0, sigma: float = 0.1, clip: bool = True) -> None:
        self.mean = checks.number("mean", mean, -1e3, 1e3)
        self.sigma = checks.number("sigma", sigma, 0.0, 1e3)
        self.clip = checks.flag("clip", clip)

    def image_after(self, image: Image) -> Image:
        if image.dtype in ("uint16", "int16"):
            raise SpecError("op", "GaussianNoise", f"cannot change {image.dtype}: put ToDtype('float32') before it")
        if self.clip and image.dtype != "uint8" and image.top != 1.0:
            reason = "cuts to 0..1: put it after ToDtype('float32', scale=True) and before Normalize"
            raise SpecError("clip", True, reason)
        return image
