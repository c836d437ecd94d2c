"""`RandomResize`: resized to a random length of the shorter side."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import ResizeOp


class RandomResize(ResizeOp):
    """Resize, antialiased, so that the shorter side has a random length; the aspect ratio stays.

    The image is uint8.

    Attributes:
        min_size: Least length in pixels.
        max_size: The length is less than this, as in torchvision; greater than `min_size`.
        interpolation: As in `RandomResizedCrop`.
    """

    def __init__(
        self, min_size: int, max_size: int, interpolation: checks.Interpolation = "bilinear", antialias: bool = True
    ) -> None:
        self.min_size = checks.side("min_size", min_size)
        self.max_size = checks.side("max_size", max_size)
        super().__init__(interpolation, antialias)
        if self.max_size <= self.min_size:
            raise SpecError("max_size", max_size, f"must be greater than min_size ({self.min_size})")
