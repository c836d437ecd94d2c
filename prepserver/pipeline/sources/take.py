"""`Take`: the first samples of a source."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import Composed
from prepserver.pipeline.source import SourceSpec


@dataclass(frozen=True, init=False)
class Take(Composed):
    """The first samples of a source.

    Attributes:
        source: The source.
        n: Number of samples, 1 to 2**40; all if the source has fewer.

    Raises:
        SpecError: A parameter is not allowed.
    """

    n: int

    def __init__(self, source: SourceSpec, n: int) -> None:
        self._compose([source], n=integer("n", n, 1, 1 << 40))

    @property
    def pattern(self) -> tuple[int, ...]:
        found = self.sources[0].pattern
        return found if found and self.n % len(found) == 0 else ()
