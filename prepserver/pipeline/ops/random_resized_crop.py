"""`RandomResizedCrop`: a random part, resized to one size."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import CropOp


class RandomResizedCrop(CropOp):
    """A random part of the image, by area and aspect ratio, resized (antialiased) to one size.

    Attributes:
        size: (height, width) of the result in pixels; an int means a square.
        scale: Least and greatest share of the image's area, before resizing.
        ratio: Least and greatest width / height of the part; drawn log-uniformly.
        interpolation: "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name. Resizing is always
            antialiased, and ``antialias=True`` is accepted.
    """

    needs_uint8 = True

    def __init__(
        self,
        size: checks.IntOrInts,
        scale: checks.Floats = (0.08, 1.0),
        ratio: checks.Floats = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: checks.Interpolation = "bilinear",
        antialias: bool = True,
    ) -> None:
        checks.antialias(antialias)
        super().__init__(size)
        self.scale = checks.number_range("scale", scale, 0.0, 1.0)
        self.ratio = checks.number_range("ratio", ratio, 1e-3, 1e3)
        self.interpolation = checks.interpolation("interpolation", interpolation)
        if self.scale[1] == 0.0:
            raise SpecError("scale", scale, "must leave some area: its greatest value is 0")
