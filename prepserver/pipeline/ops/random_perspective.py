"""`RandomPerspective`: seen from another place at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomPerspective(Op):
    """Move the image's corners inwards at random, with probability `p`; its size stays.

    Attributes:
        distortion_scale: How far a corner may move, as a share of half the side; 0 to 1.
        p: Probability, 0 to 1.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each.
    """

    moves = True
    needs_uint8 = True

    distortion_scale: float
    p: float
    interpolation: str
    fill: tuple[float, ...]

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: str | Enum = "bilinear",
        fill: float | Sequence[float] | None = 0,
    ) -> None:
        self._keep(
            distortion_scale=checks.number("distortion_scale", distortion_scale, 0.0, 1.0),
            p=checks.probability(p),
            interpolation=checks.interpolation("interpolation", interpolation, checks.WARPS),
            fill=checks.fill("fill", fill),
        )
