"""`RandomPhotometricDistort`: colours changed at random."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


class RandomPhotometricDistort(Op):
    """Change brightness, contrast, saturation, hue and the order of channels, each with probability `p`.

    This is the distortion of SSD (Liu et al., 2016). The image is uint8. Contrast changes before saturation and hue or
    after them, one as likely as the other.

    Attributes:
        brightness: Range of the factor, 0 to 1000.
        contrast: As `brightness`.
        saturation: As `brightness`.
        hue: Range of the shift in turns of the colour wheel, within -0.5 to 0.5.
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
