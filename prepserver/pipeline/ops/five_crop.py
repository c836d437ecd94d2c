"""`FiveCrop`: the corners and the middle."""

from prepserver.pipeline.op import CropOp


class FiveCrop(CropOp):
    """The four corners of the image and its middle, one in each of five views.

    The pipeline needs ``views=5``: top left, top right, bottom left, bottom right and the middle, in this order. An
    image that is smaller than a crop is bad.

    Attributes:
        size: (height, width) in pixels; an int means a square.
    """

    nests = False
    views = 5
