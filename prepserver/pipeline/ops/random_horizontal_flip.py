"""`RandomHorizontalFlip`: left and right swapped at random."""

from prepserver.pipeline.op import ChanceOp


class RandomHorizontalFlip(ChanceOp):
    """Swap left and right, with probability `p`.

    Attributes:
        p: Probability, 0 to 1.
    """

    moves = True
