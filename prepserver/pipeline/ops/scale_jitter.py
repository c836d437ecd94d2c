"""`ScaleJitter`: a random scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class ScaleJitter(Op):
    """Resize, antialiased, to a random multiple of the largest size that fits into a target; the aspect ratio stays.

    Attributes:
        target_size: (height, width) in pixels.
        scale_range: Least and greatest multiple, above 0.
        interpolation: As in `RandomResizedCrop`.
    """

    moves = True
    needs_uint8 = True

    target_size: tuple[int, int]
    scale_range: tuple[float, float]
    interpolation: str

    def __init__(
        self,
        target_size: Sequence[int],
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: str | Enum = "bilinear",
        antialias: bool = True,
    ) -> None:
        checks.antialias(antialias)
        self._keep(
            target_size=checks.size("target_size", target_size),
            scale_range=checks.number_range("scale_range", scale_range, 1e-3, 1e3),
            interpolation=checks.interpolation("interpolation", interpolation),
        )

    def size_after(self, size: Size | None) -> Size | None:
        return None
