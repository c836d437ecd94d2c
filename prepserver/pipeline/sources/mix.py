"""`Mix`: sources in fixed proportions."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from prepserver.pipeline.checks import items, number
from prepserver.pipeline.composed import MAX_SOURCES, Composed, Pattern, Sources
from prepserver.pipeline.errors import SpecError

MAX_PERIOD = 4096  # of the weights as whole numbers without a common divisor, their sum

_INEXACT = 1e-9  # 0.1 + 0.2 and the like


class Mix(Composed):
    """Samples of several sources in exact proportions.

    Sources take turns in a fixed pattern: with the weights 7 and 3, any 10 consecutive samples are 7 of the first
    source and 3 of the second. Shuffling keeps the pattern and shuffles within each source.

    An epoch ends with the period of the pattern in which the last source reaches its end; sources that ended earlier
    have started again. So each epoch has every sample at least once.

    Attributes:
        sources: 1 to 64 sources with the same columns; for classes, see `Concat`.
        weights: One number above 0 for each source; only proportions count. They are reduced to whole numbers without a
            common divisor, whose sum must be at most 4096: 0.7 and 0.3 become 7 and 3.

    Raises:
        SpecError: Columns differ, a weight is not allowed, or the composition is too large.
    """

    def __init__(self, sources: Sources, weights: Sequence[float]) -> None:
        given = [number("weights", each, 0.0) for each in items("weights", weights, range(1, MAX_SOURCES + 1))]
        if not all(given):
            raise SpecError("weights", weights, "must be above 0: leave out a source that gives nothing")
        self.weights = _whole(given)
        super().__init__(sources)
        if len(given) != len(self.sources):
            raise SpecError("weights", weights, f"must be one number for each of {len(self.sources)} sources")

    @property
    def pattern(self) -> tuple[int, ...]:
        """The number of the source of each sample, over and over again."""
        return pattern(self.weights)

    def turns(self, lengths: Sequence[int]) -> Pattern:
        return Pattern(self.pattern)


def _whole(weights: Sequence[float]) -> tuple[int, ...]:
    total = sum(weights)
    shares = [Fraction(weight / total).limit_denominator(MAX_PERIOD) for weight in weights]
    period = math.lcm(*(share.denominator for share in shares))
    exact = all(abs(share - weight / total) <= _INEXACT for share, weight in zip(shares, weights, strict=True))
    if not (exact and all(shares)) or sum(shares) != 1 or period > MAX_PERIOD:
        reason = f"must be in a proportion of whole numbers whose sum is at most {MAX_PERIOD}, such as [7, 3]"
        raise SpecError("weights", weights, reason)
    return tuple(int(share * period) for share in shares)


@lru_cache(maxsize=16)
def pattern(weights: tuple[int, ...]) -> tuple[int, ...]:
    """Return the source of each place of a period, those of one source spread as evenly as possible."""
    # A source's k-th turn belongs in the middle of the k-th of as many equal parts as it has turns.
    turns = [
        (Fraction(2 * turn + 1, 2 * weight), source) for source, weight in enumerate(weights) for turn in range(weight)
    ]
    return tuple(source for _, source in sorted(turns))
