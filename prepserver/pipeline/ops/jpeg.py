"""`JPEG`: random JPEG artefacts."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


class JPEG(Op):
    """Encode the image as a JPEG (4:2:0) of random quality, and decode it.

    The image is uint8, of at most 65500 pixels a side.

    Attributes:
        quality: Least and greatest quality, 1 to 100, both included; an int is both.
    """

    needs_uint8 = True

    def __init__(self, quality: checks.IntOrInts) -> None:
        given = quality if isinstance(quality, list | tuple) else (quality, quality)
        low, high = (checks.integer("quality", each, 1, 100) for each in checks.items("quality", given, (2,)))
        self.quality = low, checks.integer("quality", high, low, 100)
