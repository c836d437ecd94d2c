"""`TrivialAugmentWide`: one random change of random strength."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class TrivialAugmentWide(Op):
    """Apply one random change of shape or colour, of random strength. Masks follow the changes of shape.

    Attributes:
        num_magnitude_bins: Steps of the scale of strengths, 2 to 1000.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each. None means 0.
    """

    moves = True
    needs_uint8 = True

    num_magnitude_bins: int
    interpolation: str
    fill: tuple[float, ...]

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: str | Enum = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        self._keep(
            num_magnitude_bins=checks.integer("num_magnitude_bins", num_magnitude_bins, 2, 1000),
            interpolation=checks.interpolation("interpolation", interpolation, checks.WARPS),
            fill=checks.fill("fill", fill),
        )
