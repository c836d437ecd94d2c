"""`CenterCrop`: a crop of the centre."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import CropOp


class CenterCrop(CropOp):
    """Crop the centre of the image. A side that is shorter than `size` is first padded with 0 at both ends.

    Attributes:
        size: (height, width) in pixels; an int means a square.
        mask_fill: Class that masks are padded with; as in `Pad`. None is 0.
    """

    is_fixed = True

    def __init__(self, size: checks.IntOrInts, mask_fill: int | None = None) -> None:
        super().__init__(size)
        self.mask_fill = checks.mask_fill(mask_fill)
