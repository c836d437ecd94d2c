"""`Take`: the first samples of a source."""

from collections.abc import Sequence

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import Composed, Pattern
from prepserver.pipeline.source import SourceSpec


class Take(Composed):
    """The first `n` samples of a source.

    Attributes:
        source: The source.
        n: Number of samples, 1 to 2**40; all of them if the source has fewer.
    """

    def __init__(self, source: SourceSpec, n: int) -> None:
        self.n = integer("n", n, 1, 1 << 40)
        super().__init__([source])

    def turns(self, lengths: Sequence[int]) -> Pattern:
        return Pattern(length=min(self.n, lengths[0]))

    @property
    def pattern(self) -> tuple[int, ...]:
        found = self.sources[0].pattern
        return found if found and self.n % len(found) == 0 else ()
