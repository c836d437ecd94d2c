"""`FiveCrop`: the four corners and the centre."""

from prepserver.pipeline.op import CropOp


class FiveCrop(CropOp):
    """Crop the four corners and the centre of the image, one in each of five views.

    The pipeline needs ``views=5``, in the order top left, top right, bottom left, bottom right, centre. An image that
    is smaller than `size` is a bad sample.

    Attributes:
        size: (height, width) in pixels; an int means a square.
    """

    nests = False
    views = 5
