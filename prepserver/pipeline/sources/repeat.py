"""`Repeat`: a source several times per epoch."""

from collections.abc import Sequence

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import Composed, Pattern
from prepserver.pipeline.source import SourceSpec


class Repeat(Composed):
    """A source several times in one epoch. Each time, a sample is augmented with other random numbers.

    Attributes:
        source: The source.
        k: How often, 1 to 2**20.
    """

    def __init__(self, source: SourceSpec, k: int) -> None:
        self.k = integer("k", k, 1, 1 << 20)
        super().__init__([source])

    def turns(self, lengths: Sequence[int]) -> Pattern:
        return Pattern(length=self.k * lengths[0])

    @property
    def pattern(self) -> tuple[int, ...]:
        return self.sources[0].pattern
