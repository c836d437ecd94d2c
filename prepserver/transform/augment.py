"""The changes that AutoAugment and its kin choose from, with torchvision's names and scales."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from prepserver.transform import color, tones
from prepserver.transform.chance import changed
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn
from prepserver.transform.warp import affine, warped

GEOMETRY = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
COLOURS = ("Brightness", "Color", "Contrast", "Sharpness")
TABLES = ("Posterize", "Solarize", "AutoContrast", "Equalize")
ALL = ("Identity", *GEOMETRY, *COLOURS, *TABLES)

_CHANGES: dict[str, Callable[[float], tones.Change]] = {
    "Brightness": lambda magnitude: partial(color.brightness, factor=1.0 + magnitude),
    "Color": lambda magnitude: partial(color.saturation, factor=1.0 + magnitude),
    "Contrast": lambda magnitude: partial(color.contrast, factor=1.0 + magnitude),
    "Sharpness": lambda magnitude: partial(tones.sharpness, factor=1.0 + magnitude),
    "Posterize": lambda magnitude: partial(tones.posterize, bits=int(magnitude)),
    "Solarize": lambda magnitude: partial(tones.solarize, threshold=255.0 * magnitude),
    "AutoContrast": lambda _: tones.autocontrast,
    "Equalize": lambda _: tones.equalize,
    "Invert": lambda _: tones.invert,
}


class Changes:
    """Changes and how strong they are.

    Args:
        bins: Steps of each scale.
        shear: Greatest shear.
        shift: Greatest shift: pixels, or a share of the side if it is below 1.
        degrees: Greatest angle.
        colour: Greatest change of brightness and the like.
        bits: Bits that posterizing leaves at least strength, and how many fewer at the greatest one.
        interpolation: Of changes of shape.
        fill: As `interpolation`.
    """

    def __init__(
        self,
        bins: int,
        shear: float,
        shift: float,
        degrees: float,
        colour: float,
        bits: tuple[int, int],
        interpolation: str,
        fill: tuple[float, ...],
    ) -> None:
        self._how = (interpolation, fill)
        self._last = bins - 1
        self._shift, self._bits = shift, bits
        self._greatest = {
            "ShearX": shear, "ShearY": shear, "Rotate": degrees, **dict.fromkeys(COLOURS, colour),
        }  # fmt: skip

    def draw(self, name: str, step: int, height: int, width: int, draws: Draws) -> Drawn:
        """Return the decision to make a change at a step of its scale."""
        return augmented(name, self.magnitude(name, step, height, width, draws), height, width, *self._how)

    def magnitude(self, name: str, step: int, height: int, width: int, draws: Draws) -> float:
        """Return the magnitude of a change at a step of its scale, with a random sign if it has one."""
        share = step / self._last
        if name in ("TranslateX", "TranslateY"):
            side = width if name == "TranslateX" else height
            magnitude = share * (self._shift * side if self._shift < 1.0 else self._shift)
        elif name in self._greatest:
            magnitude = share * self._greatest[name]
        elif name == "Posterize":
            return round(self._bits[0] - share * self._bits[1])
        else:
            return 1.0 - share if name == "Solarize" else 0.0
        return -magnitude if draws.uniform() <= 0.5 else magnitude


def augmented(
    name: str, magnitude: float, height: int, width: int, interpolation: str, fill: tuple[float, ...]
) -> Drawn:
    """Return the decision to make a change of a magnitude; the size stays."""
    size = height, width
    if name == "Identity":
        return Drawn(None, *size)
    if name in _CHANGES:
        return Drawn(partial(changed, [_CHANGES[name](magnitude)]), *size)
    angle = math.degrees(math.atan(magnitude))
    match name:
        case "ShearX":
            matrix = affine(size, shear=(angle, 0.0), center=(0.0, 0.0))
        case "ShearY":
            matrix = affine(size, shear=(0.0, angle), center=(0.0, 0.0))
        case "TranslateX":
            matrix = affine(size, translate=(int(magnitude), 0.0))
        case "TranslateY":
            matrix = affine(size, translate=(0.0, int(magnitude)))
        case _:
            matrix = affine(size, -magnitude)
    return warped(matrix, size, interpolation, fill)
