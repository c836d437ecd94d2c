"""`ColorJitter`: random brightness, contrast, saturation and hue."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


class ColorJitter(Op):
    """Change brightness, contrast, saturation and hue by random factors, in random order, as torchvision does.

    A number v draws a factor from max(0, 1 - v) to 1 + v (for hue a shift from -v to v); a pair is the range itself,
    and is how the attribute holds it. The image is uint8; one with a single channel keeps its saturation and hue.

    Attributes:
        brightness: Range of the factor, at most 1000; (1, 1), the default, leaves brightness as it is.
        contrast: As `brightness`.
        saturation: As `brightness`.
        hue: Range of the shift in turns of the colour wheel, within -0.5 to 0.5; (0, 0), the default, leaves hue as it
            is.
    """

    needs_uint8 = True

    def __init__(
        self,
        brightness: checks.FloatOrFloats = 0,
        contrast: checks.FloatOrFloats = 0,
        saturation: checks.FloatOrFloats = 0,
        hue: checks.FloatOrFloats = 0,
    ) -> None:
        self.brightness = _factor_range("brightness", brightness)
        self.contrast = _factor_range("contrast", contrast)
        self.saturation = _factor_range("saturation", saturation)
        self.hue = checks.spread("hue", hue, -0.5, 0.5)


def _factor_range(field: str, value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple):
        return checks.number_range(field, value, 0.0, 1e3)
    spread = checks.number(field, value, 0.0, 1e3)
    return max(0.0, 1.0 - spread), 1.0 + spread
