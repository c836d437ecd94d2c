"""`Pad`: a border around the image."""

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


class Pad(Op):
    """Put a border around the image.

    Boxes and keypoints move along. Masks are padded with `fill` if it is one whole number from 0 to 255, else with 0.

    Attributes:
        padding: (left, top, right, bottom) in pixels, each at most 16384; an int means all four, a pair left/right and
            top/bottom.
        fill: Value of constant padding: one for all channels, or one for each.
        padding_mode: "constant", "edge", "reflect" (without the edge pixel) or "symmetric" (with it). Padding may be
            wider than the image, which is then mirrored repeatedly.
    """

    moves = True
    is_fixed = True

    def __init__(
        self, padding: checks.IntOrInts, fill: checks.FloatOrFloats = 0, padding_mode: str = "constant"
    ) -> None:
        self.padding = checks.padding("padding", padding)
        self.fill = checks.fill("fill", fill)
        self.padding_mode = checks.choice("padding_mode", padding_mode, checks.PADDING_MODES)

    def size_after(self, size: Size | None) -> Size | None:
        left, top, right, bottom = self.padding
        return None if size is None else (size[0] + top + bottom, size[1] + left + right)
