"""`RandomResizedCrop`: a random part, resized to one size."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import CropOp


class RandomResizedCrop(CropOp):
    """Crop a random part of the image, by area and aspect ratio, and resize it, antialiased, to one size.

    This is the crop that trained Inception (Szegedy et al., 2015). As in torchvision, ten draws look for a part that
    fits into the image; then the largest centred part whose aspect ratio lies in `ratio` is taken.
    As the first op of a pipeline, it decodes a large JPEG at a smaller scale: see "Large photos" in docs/pipelines.md.

    Attributes:
        size: (height, width) of the result in pixels; an int means a square.
        scale: Range of the part's share of the image's area, within 0 to 1.
        ratio: Range of the part's width / height, 0.001 to 1000; drawn log-uniformly.
        interpolation: "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name. Resizing is always
            antialiased, so ``antialias=True`` is accepted and False is refused.
    """

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
