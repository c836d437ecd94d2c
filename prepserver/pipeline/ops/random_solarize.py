"""`RandomSolarize`: bright values inverted at random."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomSolarize(Op):
    """Invert all values from a threshold on, with probability `p`.

    Attributes:
        threshold: Values of at least this are inverted, 0 to 256.
        p: Probability, 0 to 1.
    """

    needs_uint8 = True

    threshold: float
    p: float

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        self._keep(threshold=checks.number("threshold", threshold, 0.0, 256.0), p=checks.probability(p))
