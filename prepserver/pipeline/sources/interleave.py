"""`Interleave`: blocks of several sources in turn."""

from collections.abc import Sequence

from prepserver.pipeline.checks import integer
from prepserver.pipeline.composed import MAX_SOURCES, Blocks, Composed, Sources


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

    def __init__(self, sources: Sources, cycle_length: int, block_length: int = 1) -> None:
        self.cycle_length = integer("cycle_length", cycle_length, 1, MAX_SOURCES)
        self.block_length = integer("block_length", block_length, 1, 1 << 31)
        super().__init__(sources)

    def turns(self, lengths: Sequence[int]) -> Blocks:
        return Blocks(self.cycle_length, self.block_length)
