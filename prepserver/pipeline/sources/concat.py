"""`Concat`: sources one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline.composed import Composed
from prepserver.pipeline.source import SourceSpec


@dataclass(frozen=True, init=False)
class Concat(Composed):
    """All samples of the first source, then all of the second, and so on, as torch's ConcatDataset.

    Attributes:
        sources: 1 to 64 sources with the same columns. Where they name their classes differently, a class has the
            number that the first source with its name gives it; see docs/sources.md.

    Raises:
        SpecError: Columns differ, or the composition is too large.
    """

    def __init__(self, sources: Sequence[SourceSpec]) -> None:
        self._compose(sources)
