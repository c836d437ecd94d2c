"""`RandomGrayscale`: grey at random."""

from prepserver.pipeline.op import ChanceOp


class RandomGrayscale(ChanceOp):
    """Turn colours to grey, with probability `p`; the number of channels stays. The image is uint8.

    Attributes:
        p: Probability, 0 to 1.
    """

    needs_uint8 = True

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)
