"""`RandAugment`: some random changes of one strength."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandAugment(Op):
    """Apply random changes of shape and colour, all of one strength. Masks follow the changes of shape.

    Attributes:
        num_ops: How many changes, one after the other; 0 to 32.
        magnitude: How strong, from 0 to `num_magnitude_bins` - 1.
        num_magnitude_bins: Steps of the scale, 2 to 1000.
        interpolation: "nearest" or "bilinear", or torchvision's ``InterpolationMode`` of that name.
        fill: Value beyond the image's edges: one for all channels, or one for each. None means 0.
    """

    moves = True
    needs_uint8 = True

    num_ops: int
    magnitude: int
    num_magnitude_bins: int
    interpolation: str
    fill: tuple[float, ...]

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: str | Enum = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        self._keep(
            num_ops=checks.integer("num_ops", num_ops, 0, 32),
            magnitude=checks.integer("magnitude", magnitude, 0, 999),
            num_magnitude_bins=checks.integer("num_magnitude_bins", num_magnitude_bins, 2, 1000),
            interpolation=checks.interpolation("interpolation", interpolation, checks.WARPS),
            fill=checks.fill("fill", fill),
        )
        if self.magnitude >= self.num_magnitude_bins:
            raise SpecError("magnitude", magnitude, f"must be below num_magnitude_bins ({self.num_magnitude_bins})")
