"""`RandomEqualize`: histograms equalized at random."""

from prepserver.pipeline.op import ChanceOp


class RandomEqualize(ChanceOp):
    """Equalize the histogram of each channel, with probability `p`. The image is uint8.

    Attributes:
        p: Probability, 0 to 1.
    """

    needs_uint8 = True
