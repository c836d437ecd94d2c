"""`RandomChannelPermutation`: channels in random order."""

from prepserver.pipeline.op import Op


class RandomChannelPermutation(Op):
    """Put the channels in a random order."""
