"""`Resize`: another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class Resize(Op):
    """Resize, antialiased.

    Attributes:
        size: An int for the shorter side (the other keeps the aspect ratio), or (height, width); in pixels.
        max_size: With an int `size`, a limit on the longer side: the shorter side shrinks to keep it. None for none.
        interpolation: As in `RandomResizedCrop`.
    """

    moves = True
    needs_uint8 = True
    is_fixed = True

    size: int | tuple[int, int]
    max_size: int | None
    interpolation: str

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: str | Enum = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
    ) -> None:
        checks.antialias(antialias)
        if isinstance(size, list | tuple) and len(size) == 1:
            size = size[0]  # torchvision: [n] means n
        canonical = checks.size("size", size) if isinstance(size, list | tuple) else checks.side("size", size)
        if max_size is not None:
            max_size = checks.side("max_size", max_size)
            if isinstance(canonical, tuple):
                raise SpecError("max_size", max_size, "needs an int as size, the shorter side")
            if max_size <= canonical:
                raise SpecError("max_size", max_size, f"must be greater than size ({canonical})")
        self._keep(
            size=canonical, max_size=max_size, interpolation=checks.interpolation("interpolation", interpolation)
        )

    def result(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) in pixels of an image of `height` x `width` after resizing.

        torchvision's `_compute_resized_output_size`: the longer side is truncated, not rounded.
        """
        if isinstance(self.size, tuple):
            return self.size
        short, long = (width, height) if width <= height else (height, width)
        new_short, new_long = self.size, int(self.size * long / short)
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        new_short = max(1, new_short)  # a sliver under max_size would lose its last pixel
        return (new_long, new_short) if width <= height else (new_short, new_long)

    def size_after(self, size: Size | None) -> Size | None:
        if isinstance(self.size, tuple):
            return self.size
        return None if size is None else self.result(*size)
