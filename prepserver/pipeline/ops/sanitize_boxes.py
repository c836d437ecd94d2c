"""`SanitizeBoxes`: small and misplaced boxes removed."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import BoxOp


class SanitizeBoxes(BoxOp):
    """Remove boxes that are too small or reach beyond the image, as torchvision's SanitizeBoundingBoxes.

    Their labels, keypoints and other numbers go with them. Crops and pads leave no box beyond an edge; `ClampBoxes`
    clips those that a dataset has there.

    Attributes:
        min_size: Least width and height in pixels, 1 or more.
        min_area: Least area in pixels, 1 or more.
    """

    def __init__(self, min_size: float = 1.0, min_area: float = 1.0) -> None:
        self.min_size = checks.number("min_size", min_size, 1.0)
        self.min_area = checks.number("min_area", min_area, 1.0)
