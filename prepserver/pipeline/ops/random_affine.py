"""`RandomAffine`: turned, moved, scaled and sheared at random."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import WarpOp


class RandomAffine(WarpOp):
    """Turn, move, scale and shear the image at random; its size stays.

    Attributes:
        degrees: Least and greatest angle, clockwise; a number v means from -v to v.
        translate: Greatest shift as shares of width and height, 0 to 1; None for none.
        scale: Least and greatest factor, above 0; None leaves the scale.
        shear: Least and greatest angle in degrees along x, then perhaps along y; a number v means from -v to v along x.
            None for none.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each.
        center: (x, y) in pixels that stays where it is, apart from `translate`; None for the image's centre.
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
    ) -> None:
        if translate is not None:
            shares = checks.items("translate", translate, (2,))
            translate = [checks.number("translate", each, 0.0, 1.0) for each in shares]
        self.degrees = checks.spread("degrees", degrees, -3600.0, 3600.0)
        self.translate = None if translate is None else tuple(translate)
        self.scale = None if scale is None else checks.number_range("scale", scale, 1e-3, 1e3)
        self.shear = None if shear is None else _shear(shear)
        super().__init__(interpolation, fill)
        self.center = checks.point("center", center)


def _shear(value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or len(value) == 2:
        return checks.spread("shear", value, -89.0, 89.0)
    if len(value) != 4:
        raise SpecError("shear", value, "must be a number, or a list of 2 or 4 values")
    x, y = (checks.number_range("shear", value[at : at + 2], -89.0, 89.0) for at in (0, 2))
    return (*x, *y)
