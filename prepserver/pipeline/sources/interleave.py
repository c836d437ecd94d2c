"""`Interleave`: blocks of several sources in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import MAX_SOURCES, Composed
from prepserver.pipeline.source import SourceSpec


@dataclass(frozen=True, init=False)
class Interleave(Composed):
    """Each sample of each source once, in the order of tf.data's ``interleave``.

    Blocks of samples are taken from `cycle_length` sources in turn. A source that ends makes room for the next one.

    Attributes:
        sources: 1 to 64 sources with the same columns; of classes, see `Concat`.
        cycle_length: Sources that are read in turn, 1 to 64.
        block_length: Consecutive samples of one source, 1 to 2**31. The default is tf.data's.

    Raises:
        SpecError: Columns differ, a number is out of range, or the composition is too large.
    """

    cycle_length: int
    block_length: int

    def __init__(self, sources: Sequence[SourceSpec], cycle_length: int, block_length: int = 1) -> None:
        self._compose(
            sources,
            cycle_length=integer("cycle_length", cycle_length, 1, MAX_SOURCES),
            block_length=integer("block_length", block_length, 1, 1 << 31),
        )
