"""`Grayscale`: colours to grey."""

from __future__ import annotations

from dataclasses import dataclass, replace

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class Grayscale(Op):
    """Luma 0.2989 R + 0.587 G + 0.114 B.

    Attributes:
        num_output_channels: 1, or 3 equal channels.
    """

    needs_uint8 = True
    is_fixed = True

    num_output_channels: int

    def __init__(self, num_output_channels: int = 1) -> None:
        num_output_channels = checks.integer("num_output_channels", num_output_channels, 1, 3)
        if num_output_channels == 2:
            raise SpecError("num_output_channels", num_output_channels, "must be 1 or 3")
        self._keep(num_output_channels=num_output_channels)

    def image_after(self, image: Image) -> Image:
        return replace(image, channels=self.num_output_channels)
