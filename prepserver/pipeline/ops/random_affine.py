"""`RandomAffine`: a random rotation, shift, scale and shear."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import WarpOp


class RandomAffine(WarpOp):
    """Rotate, shift, scale and shear the image at random; its size stays. The image is uint8.

    Attributes:
        degrees: Range of the angle, clockwise, within -3600 to 3600; a number v means -v to v.
        translate: Greatest shift as a share of width and of height, each 0 to 1; None for no shift.
        scale: Range of the factor, 0.001 to 1000; None keeps the scale.
        shear: Range of the angle in degrees along x, then optionally along y, within -89 to 89; a number v means -v to
            v along x. None for no shear.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value of pixels from beyond the image's edges: one for all channels, or one for each; 0 to 255. None is 0.
        center: (x, y) in pixels, the fixed point of rotation, scale and shear; None for the image's centre.
        mask_fill: As in `Pad`.
    """

    def __init__(
        self,
        degrees: checks.FloatOrFloats,
        translate: checks.Floats | None = None,
        scale: checks.Floats | None = None,
        shear: checks.FloatOrFloats | None = None,
        interpolation: checks.Interpolation = "nearest",
        fill: checks.FloatOrFloats | None = 0,
        center: checks.Floats | None = None,
        mask_fill: int | None = None,
    ) -> None:
        if translate is not None:
            shares = checks.items("translate", translate, (2,))
            translate = [checks.number("translate", each, 0.0, 1.0) for each in shares]
        self.degrees = checks.spread("degrees", degrees, -3600.0, 3600.0)
        self.translate = None if translate is None else tuple(translate)
        self.scale = None if scale is None else checks.number_range("scale", scale, 1e-3, 1e3)
        self.shear = None if shear is None else _shear(shear)
        super().__init__(interpolation, fill, mask_fill)
        self.center = checks.point("center", center)


def _shear(value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or len(value) == 2:
        return checks.spread("shear", value, -89.0, 89.0)
    if len(value) != 4:
        raise SpecError("shear", value, "must be a number, or a list of 2 or 4 values")
    x, y = (checks.number_range("shear", value[at : at + 2], -89.0, 89.0) for at in (0, 2))
    return (*x, *y)
