"""`RandomResizedCrop`: a random part, resized to one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomResizedCrop(Op):
    """A random part of the image, by area and aspect ratio, resized (antialiased) to one size.

    Attributes:
        size: (height, width) of the result in pixels; an int means a square.
        scale: Least and greatest share of the image's area, before resizing.
        ratio: Least and greatest width / height of the part; drawn log-uniformly.
        interpolation: "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name. Resizing is always
            antialiased, and ``antialias=True`` is accepted.
    """

    moves = True
    needs_uint8 = True

    size: tuple[int, int]
    scale: tuple[float, float]
    ratio: tuple[float, float]
    interpolation: str

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: str | Enum = "bilinear",
        antialias: bool = True,
    ) -> None:
        checks.antialias(antialias)
        self._keep(
            size=checks.size("size", size),
            scale=checks.number_range("scale", scale, 0.0, 1.0),
            ratio=checks.number_range("ratio", ratio, 1e-3, 1e3),
            interpolation=checks.interpolation("interpolation", interpolation),
        )
        if self.scale[1] == 0.0:
            raise SpecError("scale", scale, "must leave some area: its greatest value is 0")

    def size_after(self, size: Size | None) -> Size:
        return self.size
