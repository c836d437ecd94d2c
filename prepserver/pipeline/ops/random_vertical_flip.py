"""`RandomVerticalFlip`: top and bottom swapped at random."""

from prepserver.pipeline.op import ChanceOp


class RandomVerticalFlip(ChanceOp):
    """Swap top and bottom, with probability `p`.

    Attributes:
        p: Probability, 0 to 1.
    """

    moves = True
