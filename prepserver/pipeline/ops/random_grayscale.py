"""`RandomGrayscale`: colours lost at random."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomGrayscale(Op):
    """Turn colours to grey, with probability `p`; the number of channels stays.

    Attributes:
        p: Probability, 0 to 1.
    """

    needs_uint8 = True

    p: float

    def __init__(self, p: float = 0.1) -> None:
        self._keep(p=checks.probability(p))
