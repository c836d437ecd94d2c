"""`Repeat`: a source several times."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import Composed
from prepserver.pipeline.source import SourceSpec


@dataclass(frozen=True, init=False)
class Repeat(Composed):
    """A source several times in one epoch, one after the other. Each time, a sample is augmented anew.

    Attributes:
        source: The source.
        k: How often, 1 to 2**20.

    Raises:
        SpecError: A parameter is not allowed.
    """

    k: int

    def __init__(self, source: SourceSpec, k: int) -> None:
        self._compose([source], k=integer("k", k, 1, 1 << 20))

    @property
    def pattern(self) -> tuple[int, ...]:
        return self.sources[0].pattern
