"""`Interleave`: blocks of several sources in turn."""

from collections.abc import Sequence

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import MAX_SOURCES, Blocks, Composed, Sources


class Interleave(Composed):
    """Each sample of each source once, in the order of tf.data's ``interleave``.

    `cycle_length` sources take turns, each with a block of samples. When a source ends, the next one takes its place.

    Attributes:
        sources: 1 to 64 sources with the same columns; for classes, see `Concat`.
        cycle_length: Number of sources that take turns, 1 to 64.
        block_length: Consecutive samples of one source, 1 to 2**31. The default, 1, is tf.data's.

    Raises:
        SpecError: Columns differ, a number is out of range, or the composition is too large.
    """

    def __init__(self, sources: Sources, cycle_length: int, block_length: int = 1) -> None:
        self.cycle_length = integer("cycle_length", cycle_length, 1, MAX_SOURCES)
        self.block_length = integer("block_length", block_length, 1, 1 << 31)
        super().__init__(sources)

    def turns(self, lengths: Sequence[int]) -> Blocks:
        return Blocks(self.cycle_length, self.block_length)
