"""`ElasticTransform`: as if seen through water."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class ElasticTransform(Op):
    """Move each pixel a little, and its neighbours alike; the size stays.

    Boxes and keypoints follow approximately, to a pixel, as in torchvision.

    Attributes:
        alpha: Strength of the displacements, 0 to 10000, or one for x and one for y.
        sigma: Standard deviation in pixels of the Gaussian that smooths them, 0 to 100, or one for x and one for y.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each.
    """

    moves = True
    needs_uint8 = True

    alpha: tuple[float, ...]
    sigma: tuple[float, ...]
    interpolation: str
    fill: tuple[float, ...]

    def __init__(
        self,
        alpha: float | Sequence[float] = 50.0,
        sigma: float | Sequence[float] = 5.0,
        interpolation: str | Enum = "bilinear",
        fill: float | Sequence[float] | None = 0,
    ) -> None:
        self._keep(
            alpha=_for_both("alpha", alpha, 1e4),
            sigma=_for_both("sigma", sigma, 100.0),
            interpolation=checks.interpolation("interpolation", interpolation, checks.WARPS),
            fill=checks.fill("fill", fill),
        )


def _for_both(field: str, value: object, high: float) -> tuple[float, float]:
    given = checks.items(field, value, (1, 2)) if isinstance(value, list | tuple) else (value,)
    numbers = [checks.number(field, each, 0.0, high) for each in given]
    return numbers[0], numbers[-1]
