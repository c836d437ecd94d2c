"""`TenCrop`: the corners and the middle, and the same of the mirrored image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class TenCrop(Op):
    """The crops of `FiveCrop`, then those of the mirrored image, one in each of ten views.

    The pipeline needs ``views=10``.

    Attributes:
        size: (height, width) in pixels; an int means a square.
        vertical_flip: The image is mirrored top to bottom, not left to right.
    """

    moves = True
    nests = False
    views = 10

    size: tuple[int, int]
    vertical_flip: bool

    def __init__(self, size: int | Sequence[int], vertical_flip: bool = False) -> None:
        self._keep(size=checks.size("size", size), vertical_flip=checks.flag("vertical_flip", vertical_flip))

    def size_after(self, size: Size | None) -> Size:
        return self.size
