"""`Pad`: a border around the image."""

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


class Pad(Op):
    """Put a border around the image.

    Boxes and keypoints move along.

    Attributes:
        padding: (left, top, right, bottom) in pixels, each at most 16384; an int means all four, a pair left/right and
            top/bottom.
        fill: Value of constant padding: one for all channels, or one for each.
        padding_mode: "constant", "edge", "reflect" (without the edge pixel) or "symmetric" (with it). Padding may be
            wider than the image, which is then mirrored repeatedly.
        mask_fill: Class, 0 to 255 (65535 for masks of 16 bits), that masks get where images get `fill`, such as the
            255 that losses are told to ignore. None means `fill` if that is one whole number that they hold, else 0.
    """

    moves = True
    is_fixed = True

    def __init__(
        self,
        padding: checks.IntOrInts,
        fill: checks.FloatOrFloats = 0,
        padding_mode: str = "constant",
        mask_fill: int | None = None,
    ) -> None:
        self.padding = checks.padding("padding", padding)
        self.fill = checks.fill("fill", fill)
        self.padding_mode = checks.choice("padding_mode", padding_mode, checks.PADDING_MODES)
        self.mask_fill = checks.mask_fill(mask_fill)

    def size_after(self, size: Size | None) -> Size | None:
        left, top, right, bottom = self.padding
        return None if size is None else (size[0] + top + bottom, size[1] + left + right)
