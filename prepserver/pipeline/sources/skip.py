"""`Skip`: all samples of a source but the first ones."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import Composed
from prepserver.pipeline.source import SourceSpec


@dataclass(frozen=True, init=False)
class Skip(Composed):
    """All samples of a source but the first ones.

    Attributes:
        source: The source; it must have more than `n` samples.
        n: Number of samples that are left out, 0 to 2**40.

    Raises:
        SpecError: A parameter is not allowed.
    """

    n: int

    def __init__(self, source: SourceSpec, n: int) -> None:
        self._compose([source], n=integer("n", n, 0, 1 << 40))
