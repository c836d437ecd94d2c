"""`Skip`: a source without its first samples."""

from collections.abc import Sequence

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import Composed, Pattern
from prepserver.pipeline.source import SourceSpec


class Skip(Composed):
    """A source without its first `n` samples.

    Attributes:
        source: The source; it must have more than `n` samples.
        n: Number of samples to leave out, 0 to 2**40.
    """

    def __init__(self, source: SourceSpec, n: int) -> None:
        self.n = integer("n", n, 0, 1 << 40)
        super().__init__([source])

    def turns(self, lengths: Sequence[int]) -> Pattern:
        return Pattern(start=self.n, length=max(0, lengths[0] - self.n))
