"""`RandomRotation`: turned by a random angle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomRotation(Op):
    """Turn the image by a random angle.

    Attributes:
        degrees: Least and greatest angle, anticlockwise; a number v means from -v to v.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        expand: Make the result as large as the turned image, so that nothing is cut off. Its size then differs from
            sample to sample.
        center: (x, y) in pixels that stays where it is; None for the image's centre.
        fill: Value beyond the image's edges: one for all channels, or one for each.
    """

    moves = True
    needs_uint8 = True

    degrees: tuple[float, float]
    interpolation: str
    expand: bool
    center: tuple[float, float] | None
    fill: tuple[float, ...]

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: str | Enum = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: float | Sequence[float] | None = 0,
    ) -> None:
        self._keep(
            degrees=checks.spread("degrees", degrees, -3600.0, 3600.0),
            interpolation=checks.interpolation("interpolation", interpolation, checks.WARPS),
            expand=checks.flag("expand", expand),
            center=checks.point("center", center),
            fill=checks.fill("fill", fill),
        )

    def size_after(self, size: Size | None) -> Size | None:
        return None if self.expand else size
