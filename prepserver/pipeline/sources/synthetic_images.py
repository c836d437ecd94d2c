"""`SyntheticImages`: drawn images, to try everything without a dataset."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.checks import integer
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import SourceSpec


@dataclass(frozen=True)
class SyntheticImages(SourceSpec):
    """Procedural JPEGs with the statistics of photos, to try everything without a dataset.

    Attributes:
        n: Number of samples, 1 .. 2**40.
        size: (height, width) in pixels, or one number for both; 1 .. 4096. The default is the median of ImageNet.
        seed: 0 .. 2**63 - 1. A sample is a function of the seed and its index.
        num_classes: Labels are spread over range(num_classes); 1 .. 2**31.

    Raises:
        SpecError: A parameter is out of range.
    """

    n: int
    size: tuple[int, int] | int = (375, 500)
    seed: int = 0
    num_classes: int = 1000

    def __post_init__(self) -> None:
        size: object = self.size
        sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
        if len(sides) != 2:
            raise SpecError("size", size, "must be (height, width) or one integer for both")
        self._keep(
            n=integer("n", self.n, 1, 1 << 40),
            seed=integer("seed", self.seed, 0, (1 << 63) - 1),
            num_classes=integer("num_classes", self.num_classes, 1, 1 << 31),
            size=tuple(integer("size", side, 1, 4096) for side in sides),
        )

    @property
    def height(self) -> int:
        """Height of every image in pixels."""
        return self.size[0] if isinstance(self.size, tuple) else self.size

    @property
    def width(self) -> int:
        """Width of every image in pixels."""
        return self.size[1] if isinstance(self.size, tuple) else self.size
