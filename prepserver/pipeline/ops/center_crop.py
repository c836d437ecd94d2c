"""`CenterCrop`: a crop of the centre."""

from prepserver.pipeline.op import CropOp


class CenterCrop(CropOp):
    """Crop the centre of the image. A side that is shorter than `size` is first padded with 0 at both ends.

    Attributes:
        size: (height, width) in pixels; an int means a square.
    """

    is_fixed = True
