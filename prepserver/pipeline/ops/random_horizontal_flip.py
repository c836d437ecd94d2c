"""`RandomHorizontalFlip`: left and right swapped at random."""

from prepserver.pipeline.op import ChanceOp


class RandomHorizontalFlip(ChanceOp):
    """Swap left and right, with probability `p`.

    Keypoints that are a pair, such as left and right eye, swap their places.

    Attributes:
        p: Probability, 0 to 1.
    """

    moves = True
