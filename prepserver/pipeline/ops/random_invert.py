"""`RandomInvert`: values inverted at random."""

from prepserver.pipeline.op import ChanceOp


class RandomInvert(ChanceOp):
    """Invert all values (255 - value), with probability `p`. The image is uint8.

    Attributes:
        p: Probability, 0 to 1.
    """

    needs_uint8 = True
