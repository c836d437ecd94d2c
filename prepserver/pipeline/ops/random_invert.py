"""`RandomInvert`: values inverted at random."""

from prepserver.pipeline.op import ChanceOp


class RandomInvert(ChanceOp):
    """Invert all values (255 - value), with probability `p`.

    Attributes:
        p: Probability, 0 to 1.
    """

    needs_uint8 = True
