"""`RandomPhotometricDistort`: colours changed at random, as for SSD."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


class RandomPhotometricDistort(Op):
    """Change brightness, contrast, saturation, hue and the order of the channels, each with probability `p`.

    Attributes:
        brightness: Least and greatest factor.
        contrast: As `brightness`.
        saturation: As `brightness`.
        hue: Least and greatest shift in turns, within -0.5 to 0.5.
        p: Probability of each change, 0 to 1.
    """

    needs_uint8 = True

    def __init__(
        self,
        brightness: checks.Floats = (0.875, 1.125),
        contrast: checks.Floats = (0.5, 1.5),
        saturation: checks.Floats = (0.5, 1.5),
        hue: checks.Floats = (-0.05, 0.05),
        p: float = 0.5,
    ) -> None:
        self.brightness = checks.number_range("brightness", brightness, 0.0, 1e3)
        self.contrast = checks.number_range("contrast", contrast, 0.0, 1e3)
        self.saturation = checks.number_range("saturation", saturation, 0.0, 1e3)
        self.hue = checks.number_range("hue", hue, -0.5, 0.5)
        self.p = checks.probability(p)
