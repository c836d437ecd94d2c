"""`FiveCrop`: the corners and the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class FiveCrop(Op):
    """The four corners of the image and its middle, one in each of five views.

    The pipeline needs ``views=5``: top left, top right, bottom left, bottom right and the middle, in this order. An
    image that is smaller than a crop is bad.

    Attributes:
        size: (height, width) in pixels; an int means a square.
    """

    moves = True
    nests = False
    views = 5

    size: tuple[int, int]

    def __init__(self, size: int | Sequence[int]) -> None:
        self._keep(size=checks.size("size", size))

    def size_after(self, size: Size | None) -> Size:
        return self.size
