"""`ClampBoxes`: boxes cut at the image's edge."""

from prepserver.pipeline.op import BoxOp


class ClampBoxes(BoxOp):
    """Boxes cut at the image's edge, as every crop and pad does; torchvision's ClampBoundingBoxes.

    A box that lies outside is left without width or height; `SanitizeBoxes` removes it.
    """
