"""`SanitizeBoxes`: small and misplaced boxes removed."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import BoxOp


class SanitizeBoxes(BoxOp):
    """Remove boxes that are too small or reach beyond the image, as torchvision's SanitizeBoundingBoxes.

    Their labels, keypoints and other numbers go with them. Put `ClampBoxes` before it, as torchvision recommends:
    datasets have boxes beyond an edge, and rounding in a resize may move a box at the edge beyond it. After a crop, pad
    or warp that is not needed.

    Attributes:
        min_size: Least width and height in pixels, 1 or more.
        min_area: Least area in pixels, 1 or more.
    """

    def __init__(self, min_size: float = 1.0, min_area: float = 1.0) -> None:
        self.min_size = checks.number("min_size", min_size, 1.0)
        self.min_area = checks.number("min_area", min_area, 1.0)
