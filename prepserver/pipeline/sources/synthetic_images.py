"""`SyntheticImages`: generated images, to try things without a dataset."""

from collections.abc import Sequence

from prepserver.pipeline.checks import integer
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import SourceSpec


class SyntheticImages(SourceSpec):
    """Generated JPEGs with the statistics of photos, to try things without a dataset.

    Attributes:
        n: Number of samples, 1 to 2**40.
        size: (height, width) in pixels, or one number for both; 1 to 4096. The default is the median of ImageNet.
        seed: 0 to 2**63 - 1. A sample is a function of the seed and its index.
        num_classes: Number of classes, 1 to 2**31; labels are 0 to `num_classes` - 1.
    """

    def __init__(self, n: int, size: int | Sequence[int] = (375, 500), seed: int = 0, num_classes: int = 1000) -> None:
        sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
        if len(sides) != 2:
            raise SpecError("size", size, "must be (height, width) or one integer for both")
        self.n = integer("n", n, 1, 1 << 40)
        self.seed = integer("seed", seed, 0, (1 << 63) - 1)
        self.num_classes = integer("num_classes", num_classes, 1, 1 << 31)
        self.size = tuple(integer("size", side, 1, 4096) for side in sides)

    @property
    def height(self) -> int:
        """Height of every image in pixels."""
        return self.size[0]

    @property
    def width(self) -> int:
        """Width of every image in pixels."""
        return self.size[1]
