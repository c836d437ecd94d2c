"""`RandomPosterize`: fewer bits at random."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomPosterize(Op):
    """Keep the highest bits of each value, with probability `p`.

    Attributes:
        bits: How many bits stay, 0 to 8.
        p: Probability, 0 to 1.
    """

    needs_uint8 = True

    bits: int
    p: float

    def __init__(self, bits: int, p: float = 0.5) -> None:
        self._keep(bits=checks.integer("bits", bits, 0, 8), p=checks.probability(p))
