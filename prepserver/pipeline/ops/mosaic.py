"""`Mosaic`: four samples in one."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import MixOp


class Mosaic(MixOp):
    """Put the sample and three other, random ones around a random point, as YOLO's mosaic does.

    The four images meet at a point of a canvas twice as large as `size`. Each one is resized to fit into `size` with
    its aspect ratio kept, and is cut at the edge of the canvas. The others come from the whole source; the ops before
    this one apply to each of the four. Masks, boxes and keypoints of all four are joined. Other columns, such as the
    label and the index, are the sample's own. The images are uint8.

    Attributes:
        size: (height, width) in pixels of a quarter of the canvas, at most 8192; an int means a square. Crop the canvas
            afterwards.
        center: Range of the point where the images meet, as a share of `size` in either direction, 0 to 2.
        fill: Value of the canvas outside the images: one for all channels, or one for each.
        interpolation: "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name.
        mask_fill: As in `Pad`.
    """

    needs_uint8 = True
    partners = 3

    def __init__(
        self,
        size: checks.IntOrInts,
        center: checks.Floats = (0.5, 1.5),
        fill: checks.FloatOrFloats = 114,
        interpolation: checks.Interpolation = "bilinear",
        mask_fill: int | None = None,
    ) -> None:
        self.size = checks.size("size", size)
        self.center = checks.number_range("center", center, 0.0, 2.0)
        self.fill = checks.fill("fill", fill)
        self.interpolation = checks.interpolation("interpolation", interpolation)
        self.mask_fill = checks.mask_fill(mask_fill)
        if 2 * max(self.size) > checks.MAX_SIDE_PX:
            raise SpecError("size", size, f"must be at most {checks.MAX_SIDE_PX // 2}: the canvas is twice as large")

    def size_after(self, size: Size | None) -> Size:
        return 2 * self.size[0], 2 * self.size[1]
