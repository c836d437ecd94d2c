"""`ScaleJitter`: a random scale."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ResizeOp


class ScaleJitter(ResizeOp):
    """Resize, antialiased, to a random multiple of the largest size that fits into `target_size`.

    This is the large-scale jitter of simple copy-paste (Ghiasi et al., 2021). The aspect ratio stays; the image is
    uint8. As in torchvision, the height is compared with the second number of `target_size`, and the width with the
    first.

    Attributes:
        target_size: (height, width) in pixels.
        scale_range: Range of the multiple, 0.001 to 1000.
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
