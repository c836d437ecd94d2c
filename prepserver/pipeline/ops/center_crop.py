"""`CenterCrop`: the middle of an image."""

from prepserver.pipeline.op import CropOp


class CenterCrop(CropOp):
    """The middle of the image; an image that is smaller is first padded with 0.

    Attributes:
        size: (height, width) in pixels; an int means a square.
    """

    is_fixed = True
