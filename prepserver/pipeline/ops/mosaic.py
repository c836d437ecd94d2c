"""`Mosaic`: four samples in one."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import MixOp


class Mosaic(MixOp):
    """The sample and three others, drawn at random, around a random point, as YOLO's mosaics.

    The four images meet at a point of a canvas of twice the `size`, each shrunk or enlarged to fit into `size`. The
    others come from the whole source, and ops before this one are done to each of the four. What is not on the images'
    plane, such as the label and the index, is the sample's own.

    Attributes:
        size: (height, width) in pixels of a quarter of the canvas; an int means a square. Crop the canvas afterwards.
        center: Where the images meet: least and greatest share of `size` in both directions, 0 to 2.
        fill: Value of the canvas where no image lies: one for all channels, or one for each.
        interpolation: "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name.
    """

    needs_uint8 = True
    partners = 3

    def __init__(
        self,
        size: checks.IntOrInts,
        center: checks.Floats = (0.5, 1.5),
        fill: checks.FloatOrFloats = 114,
        interpolation: checks.Interpolation = "bilinear",
    ) -> None:
        self.size = checks.size("size", size)
        self.center = checks.number_range("center", center, 0.0, 2.0)
        self.fill = checks.fill("fill", fill)
        self.interpolation = checks.interpolation("interpolation", interpolation)
        if 2 * max(self.size) > checks.MAX_SIDE_PX:
            raise SpecError("size", size, f"must be at most {checks.MAX_SIDE_PX // 2}: the canvas is twice as large")

    def size_after(self, size: Size | None) -> Size:
        return 2 * self.size[0], 2 * self.size[1]
