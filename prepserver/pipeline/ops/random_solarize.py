"""`RandomSolarize`: bright values inverted at random."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ChanceOp


class RandomSolarize(ChanceOp):
    """Invert all values that are at least `threshold`, with probability `p`. The image is uint8.

    Attributes:
        threshold: Least value that is inverted, 0 to 256; 256 inverts none.
        p: Probability, 0 to 1.
    """

    needs_uint8 = True

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = checks.number("threshold", threshold, 0.0, 256.0)
