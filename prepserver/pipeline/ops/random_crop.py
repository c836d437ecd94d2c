"""`RandomCrop`: a crop of fixed size at a random place."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import CropOp


class RandomCrop(CropOp):
    """Crop a window of fixed size at a random place, perhaps after padding the image.

    Attributes:
        size: (height, width) in pixels; an int means a square.
        padding: (left, top, right, bottom) in pixels, put around the image first; an int means all four, a pair
            left/right and top/bottom. None for no padding.
        pad_if_needed: Pad an image that is still smaller than `size`, by the whole shortfall on both sides, as
            torchvision does. False, the default, makes such a sample bad.
        fill: Value of constant padding: one for all channels, or one for each.
        padding_mode: As in `Pad`.
        mask_fill: As in `Pad`.
    """

    def __init__(
        self,
        size: checks.IntOrInts,
        padding: checks.IntOrInts | None = None,
        pad_if_needed: bool = False,
        fill: checks.FloatOrFloats = 0,
        padding_mode: str = "constant",
        mask_fill: int | None = None,
    ) -> None:
        super().__init__(size)
        self.padding = None if padding is None else checks.padding("padding", padding)
        self.pad_if_needed = checks.flag("pad_if_needed", pad_if_needed)
        self.fill = checks.fill("fill", fill)
        self.padding_mode = checks.choice("padding_mode", padding_mode, checks.PADDING_MODES)
        self.mask_fill = checks.mask_fill(mask_fill)

    def margins(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (left, top, right, bottom) padding in pixels for an image of `height` x `width`."""
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        if self.pad_if_needed:  # torchvision adds the whole shortfall on each side
            down = max(0, self.size[0] - (height + top + bottom))
            across = max(0, self.size[1] - (width + left + right))
            return left + across, top + down, right + across, bottom + down
        return left, top, right, bottom

    def size_after(self, size: Size | None) -> Size | None:
        if size is not None:
            left, top, right, bottom = self.margins(*size)
            padded = (size[0] + top + bottom, size[1] + left + right)
            if padded[0] < self.size[0] or padded[1] < self.size[1]:
                reason = f"is larger than the image ({padded}): make it smaller, or set pad_if_needed=True"
                raise SpecError("size", self.size, reason)
        return super().size_after(size)
