"""`RandomAutocontrast`: contrast stretched at random."""

from prepserver.pipeline.op import ChanceOp


class RandomAutocontrast(ChanceOp):
    """Stretch the values of each channel to 0..255, with probability `p`. The image is uint8.

    Attributes:
        p: Probability, 0 to 1.
    """

    needs_uint8 = True
