"""`RandomZoomOut`: an image on a larger canvas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomZoomOut(Op):
    """The image at a random place on a larger canvas, with probability `p`.

    Attributes:
        fill: Value of the canvas: one for all channels, or one for each.
        side_range: Least and greatest side of the canvas, in sides of the image; 1 to 16.
        p: Probability, 0 to 1.
    """

    moves = True

    fill: tuple[float, ...]
    side_range: tuple[float, float]
    p: float

    def __init__(
        self, fill: float | Sequence[float] = 0, side_range: Sequence[float] = (1.0, 4.0), p: float = 0.5
    ) -> None:
        self._keep(
            fill=checks.fill("fill", fill),
            side_range=checks.number_range("side_range", side_range, 1.0, 16.0),
            p=checks.number("p", p, 0.0, 1.0),
        )

    def size_after(self, size: Size | None) -> None:
        return None
