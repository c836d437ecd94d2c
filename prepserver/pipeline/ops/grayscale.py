"""`Grayscale`: colours to grey."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op


class Grayscale(Op):
    """Turn colours to grey: 0.2989 R + 0.587 G + 0.114 B, rounded down. The image is uint8.

    Attributes:
        num_output_channels: 1, or 3 for three equal channels.
    """

    needs_uint8 = True
    is_fixed = True

    def __init__(self, num_output_channels: int = 1) -> None:
        self.num_output_channels = checks.channels("num_output_channels", num_output_channels)

    def image_after(self, image: Image) -> Image:
        return replace(image, channels=self.num_output_channels)
