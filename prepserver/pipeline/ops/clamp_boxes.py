"""`ClampBoxes`: boxes clipped to the image."""

from prepserver.pipeline.op import BoxOp


class ClampBoxes(BoxOp):
    """Clip boxes to the image, as torchvision's ClampBoundingBoxes; crops, pads and warps already do this.

    A box outside the image is left with no width or no height; `SanitizeBoxes` removes it.
    """
