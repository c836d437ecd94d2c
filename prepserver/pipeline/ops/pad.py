"""`Pad`: pixels put around an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class Pad(Op):
    """Pixels put around the image.

    Attributes:
        padding: (left, top, right, bottom) in pixels; an int means all four, a pair left/right and top/bottom.
        fill: Value of constant padding: one for all channels, or one for each.
        padding_mode: "constant", "edge", "reflect" (without the edge pixel) or "symmetric" (with it).
    """

    moves = True
    is_fixed = True

    padding: tuple[int, int, int, int]
    fill: tuple[float, ...]
    padding_mode: str

    def __init__(
        self, padding: int | Sequence[int], fill: float | Sequence[float] = 0, padding_mode: str = "constant"
    ) -> None:
        self._keep(
            padding=checks.padding("padding", padding),
            fill=checks.fill("fill", fill),
            padding_mode=checks.choice("padding_mode", padding_mode, checks.PADDING_MODES),
        )

    def size_after(self, size: Size | None) -> Size | None:
        left, top, right, bottom = self.padding
        return None if size is None else (size[0] + top + bottom, size[1] + left + right)
