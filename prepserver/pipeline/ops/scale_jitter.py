"""`ScaleJitter`: a random scale."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ResizeOp


class ScaleJitter(ResizeOp):
    """Resize, antialiased, to a random multiple of the largest size that fits into a target; the aspect ratio stays.

    Attributes:
        target_size: (height, width) in pixels.
        scale_range: Least and greatest multiple, above 0.
        interpolation: As in `RandomResizedCrop`.
    """

    def __init__(
        self,
        target_size: checks.Ints,
        scale_range: checks.Floats = (0.1, 2.0),
        interpolation: checks.Interpolation = "bilinear",
        antialias: bool = True,
    ) -> None:
        self.target_size = checks.size("target_size", target_size)
        self.scale_range = checks.number_range("scale_range", scale_range, 1e-3, 1e3)
        super().__init__(interpolation, antialias)
