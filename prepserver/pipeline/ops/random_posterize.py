"""`RandomPosterize`: fewer bits at random."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ChanceOp


class RandomPosterize(ChanceOp):
    """Keep the highest `bits` of each value and set the others to 0, with probability `p`. The image is uint8.

    Attributes:
        bits: Number of bits that stay, 0 to 8.
        p: Probability, 0 to 1.
    """

    needs_uint8 = True

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        self.bits = checks.integer("bits", bits, 0, 8)
