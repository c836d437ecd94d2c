"""`JPEG`: the traces of compression."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


class JPEG(Op):
    """Encode and decode the image as a JPEG of random quality (4:2:0).

    Attributes:
        quality: Least and greatest quality, 1 to 100, both included; a number means just that.
    """

    needs_uint8 = True

    def __init__(self, quality: checks.IntOrInts) -> None:
        given = quality if isinstance(quality, list | tuple) else (quality, quality)
        low, high = (checks.integer("quality", each, 1, 100) for each in checks.items("quality", given, (2,)))
        self.quality = low, checks.integer("quality", high, low, 100)
