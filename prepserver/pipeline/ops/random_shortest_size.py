"""`RandomShortestSize`: the shorter side resized to one of several lengths."""

from prepserver.pipeline import checks
from prepserver.pipeline.op import ResizeOp


class RandomShortestSize(ResizeOp):
    """Resize, antialiased, so that the shorter side has one of several lengths; the aspect ratio stays.

    The image is uint8.

    Attributes:
        min_size: Lengths of the shorter side in pixels, 1 to 64 of them, one of which is drawn; an int is the only one.
        max_size: Limit on the longer side in pixels: the shorter side shrinks to keep it. None for no limit.
        interpolation: As in `RandomResizedCrop`.
    """

    def __init__(
        self,
        min_size: checks.IntOrInts,
        max_size: int | None = None,
        interpolation: checks.Interpolation = "bilinear",
        antialias: bool = True,
    ) -> None:
        given = checks.items_or_one("min_size", min_size, range(1, 65))
        self.min_size = tuple(checks.side("min_size", each) for each in given)
        self.max_size = None if max_size is None else checks.side("max_size", max_size)
        super().__init__(interpolation, antialias)
