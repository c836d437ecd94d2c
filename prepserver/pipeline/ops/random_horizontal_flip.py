"""`RandomHorizontalFlip`: left and right swapped at random."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomHorizontalFlip(Op):
    """Swap left and right, with probability `p`.

    Attributes:
        p: Probability, 0 to 1.
    """

    moves = True

    p: float

    def __init__(self, p: float = 0.5) -> None:
        self._keep(p=checks.number("p", p, 0.0, 1.0))
