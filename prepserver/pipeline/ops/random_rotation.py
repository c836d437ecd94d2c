"""`RandomRotation`: turned by a random angle."""

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import WarpOp


class RandomRotation(WarpOp):
    """Turn the image by a random angle.

    Attributes:
        degrees: Least and greatest angle, anticlockwise; a number v means from -v to v.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        expand: Make the result as large as the turned image, so that nothing is cut off. Its size then differs from
            sample to sample.
        center: (x, y) in pixels that stays where it is; None for the image's centre.
        fill: Value beyond the image's edges: one for all channels, or one for each.
    """

    def __init__(
        self,
        degrees: checks.FloatOrFloats,
        interpolation: checks.Interpolation = "nearest",
        expand: bool = False,
        center: checks.Floats | None = None,
        fill: checks.FloatOrFloats | None = 0,
    ) -> None:
        self.degrees = checks.spread("degrees", degrees, -3600.0, 3600.0)
        super().__init__(interpolation, fill)
        self.expand = checks.flag("expand", expand)
        self.center = checks.point("center", center)

    def size_after(self, size: Size | None) -> Size | None:
        return None if self.expand else size
