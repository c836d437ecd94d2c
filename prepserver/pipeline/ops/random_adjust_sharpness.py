"""`RandomAdjustSharpness`: sharper or softer at random."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomAdjustSharpness(Op):
    """Blend the image with a smoothed one, with probability `p`.

    Attributes:
        sharpness_factor: 0 is smoothed, 1 changes nothing, 2 is twice as sharp; at most 1000.
        p: Probability, 0 to 1.
    """

    needs_uint8 = True

    sharpness_factor: float
    p: float

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        self._keep(
            sharpness_factor=checks.number("sharpness_factor", sharpness_factor, 0.0, 1e3), p=checks.probability(p)
        )
