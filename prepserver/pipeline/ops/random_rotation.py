"""`RandomRotation`: a random rotation."""

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import WarpOp


class RandomRotation(WarpOp):
    """Rotate the image by a random angle. The image is uint8.

    Attributes:
        degrees: Range of the angle, anticlockwise, within -3600 to 3600; a number v means -v to v.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        expand: Enlarge the result so that it holds the whole rotated image. Its size then differs from sample to
            sample, and `center` does not count. False, the default, keeps the size.
        center: (x, y) in pixels of the fixed point; None for the image's centre.
        fill: Value of pixels from beyond the image's edges: one for all channels, or one for each; 0 to 255. None is 0.
        mask_fill: As in `Pad`.
    """

    def __init__(
        self,
        degrees: checks.FloatOrFloats,
        interpolation: checks.Interpolation = "nearest",
        expand: bool = False,
        center: checks.Floats | None = None,
        fill: checks.FloatOrFloats | None = 0,
        mask_fill: int | None = None,
    ) -> None:
        self.degrees = checks.spread("degrees", degrees, -3600.0, 3600.0)
        super().__init__(interpolation, fill, mask_fill)
        self.expand = checks.flag("expand", expand)
        self.center = checks.point("center", center)

    def size_after(self, size: Size | None) -> Size | None:
        return None if self.expand else size
