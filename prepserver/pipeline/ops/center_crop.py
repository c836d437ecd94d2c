"""`CenterCrop`: the middle of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class CenterCrop(Op):
    """The middle of the image; an image that is smaller is first padded with 0.

    Attributes:
        size: (height, width) in pixels; an int means a square.
    """

    moves = True
    is_fixed = True

    size: tuple[int, int]

    def __init__(self, size: int | Sequence[int]) -> None:
        self._keep(size=checks.size("size", size))

    def size_after(self, size: Size | None) -> Size:
        return self.size
