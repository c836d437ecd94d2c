"""`Decode`: encoded bytes to pixels."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Columns

DEFAULT_MAX_PIXELS = 64_000_000


class Decode(Op):
    """Decode an image to uint8 RGB, (H, W, 3). A pipeline without it begins with ``Decode()``.

    Alpha is dropped, grey, palette and CMYK images become RGB, and 16-bit values keep their high byte. An image that is
    declared with other channels or another dtype keeps them.

    Attributes:
        exif_orientation: Turn the image as its EXIF tag says, as viewers do (a TIFF is always turned). True by default.
        max_pixels: A sample whose header claims more pixels is bad, and is not decoded: a few hundred bytes can claim
            12 GiB. At most 2**28; the default, 64 million, covers every camera's photo in 192 MB.
        mode: "RGB", the only mode.
    """

    nests = False

    def __init__(self, exif_orientation: bool = True, max_pixels: int = DEFAULT_MAX_PIXELS, mode: str = "RGB") -> None:
        self.exif_orientation = checks.flag("exif_orientation", exif_orientation)
        self.max_pixels = checks.integer("max_pixels", max_pixels, 1, checks.MAX_SIDE_PX**2)
        self.mode = checks.choice("mode", mode, ("RGB",))

    def after(self, columns: Columns) -> Columns:
        # The pipeline does not ask its first op.
        raise SpecError("op", "Decode", "must be the first op, once")
