"""`RandomResize`: a random size."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomResize(Op):
    """Resize, antialiased, so that the shorter side has a random length; the other keeps the aspect ratio.

    Attributes:
        min_size: Least length in pixels.
        max_size: The length is less than this.
        interpolation: As in `RandomResizedCrop`.
    """

    moves = True
    needs_uint8 = True

    min_size: int
    max_size: int
    interpolation: str

    def __init__(
        self, min_size: int, max_size: int, interpolation: str | Enum = "bilinear", antialias: bool = True
    ) -> None:
        checks.antialias(antialias)
        self._keep(
            min_size=checks.side("min_size", min_size),
            max_size=checks.side("max_size", max_size),
            interpolation=checks.interpolation("interpolation", interpolation),
        )
        if self.max_size <= self.min_size:
            raise SpecError("max_size", max_size, f"must be greater than min_size ({self.min_size})")

    def size_after(self, size: Size | None) -> Size | None:
        return None
