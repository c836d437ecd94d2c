"""`TenCrop`: the corners and the centre, and the same of the mirrored image."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import CropOp


class TenCrop(CropOp):
    """The crops of `FiveCrop`, then the same crops of the mirrored image, one in each of ten views.

    The pipeline needs ``views=10``. An image that is smaller than `size` is a bad sample.

    Attributes:
        size: (height, width) in pixels; an int means a square.
        vertical_flip: Mirror top to bottom instead of left to right.
    """

    nests = False
    views = 10

    def __init__(self, size: checks.IntOrInts, vertical_flip: bool = False) -> None:
        super().__init__(size)
        self.vertical_flip = checks.flag("vertical_flip", vertical_flip)
