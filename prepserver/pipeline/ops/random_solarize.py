"""`RandomSolarize`: bright values inverted at random."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ChanceOp


class RandomSolarize(ChanceOp):
    """Invert all values from a threshold on, with probability `p`.

    Attributes:
        threshold: Values of at least this are inverted, 0 to 256.
        p: Probability, 0 to 1.
    """

    needs_uint8 = True

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = checks.number("threshold", threshold, 0.0, 256.0)
