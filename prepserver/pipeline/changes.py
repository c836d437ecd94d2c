"""The changes that `RandAugment` and its kin choose from, with torchvision's names and scales.

Workers make them for one sample after another (`prepserver.transform.augment`), clients for the rows of a batch
(`prepclient.device_ops`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prepserver.pipeline.affine import Matrix, affine
from prepserver.pipeline.kinds import Size

GEOMETRY = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
COLOURS = ("Brightness", "Color", "Contrast", "Sharpness")
TABLES = ("Posterize", "Solarize", "AutoContrast", "Equalize")
ALL = ("Identity", *GEOMETRY, *COLOURS, *TABLES)
SIGNED = (*GEOMETRY, *COLOURS)  # those that go either way, one as likely as the other


@dataclass(frozen=True, slots=True)
class Scales:
    """How strong changes are."""

    bins: int  # steps of each scale
    shear: float  # greatest shear
    shift: float  # greatest shift: pixels, or a share of the side if it is below 1
    degrees: float  # greatest angle
    colour: float  # greatest change of brightness and the like
    bits: tuple[int, int]  # bits that posterizing leaves at least strength, and how many fewer at the greatest one

    def magnitude(self, name: str, step: int, size: Size) -> float:
        """Return the magnitude of a change at a step of its scale, for an image of this size; 0 for one without."""
        share = step / (self.bins - 1)
        match name:
            case "ShearX" | "ShearY":
                return share * self.shear
            case "TranslateX" | "TranslateY":
                side = size[1] if name == "TranslateX" else size[0]
                return share * (self.shift * side if self.shift < 1.0 else self.shift)
            case "Rotate":
                return share * self.degrees
            case "Posterize":
                return round(self.bits[0] - share * self.bits[1])
            case "Solarize":
                return 1.0 - share
            case _:
                return share * self.colour if name in COLOURS else 0.0


def matrix(name: str, magnitude: float, size: Size) -> Matrix:
    """Return the matrix of one of `GEOMETRY`, for an image of this size."""
    angle = math.degrees(math.atan(magnitude))
    match name:
        case "ShearX":
            return affine(size, shear=(angle, 0.0), center=(0.0, 0.0))
        case "ShearY":
            return affine(size, shear=(0.0, angle), center=(0.0, 0.0))
        case "TranslateX":
            return affine(size, translate=(int(magnitude), 0.0))
        case "TranslateY":
            return affine(size, translate=(0.0, int(magnitude)))
        case _:
            return affine(size, -magnitude)
