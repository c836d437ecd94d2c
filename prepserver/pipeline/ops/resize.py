"""`Resize`: resized to one size."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import ResizeOp


class Resize(ResizeOp):
    """Resize, antialiased. The image is uint8.

    Attributes:
        size: An int for the shorter side (the aspect ratio stays), or (height, width); in pixels. None to give the
            longer side the length `max_size` instead.
        max_size: With an int `size`, a limit on the longer side: the shorter side shrinks to keep it. None for no
            limit.
        interpolation: As in `RandomResizedCrop`.
        cover: With (height, width): the smallest image of the same aspect ratio that has at least these sides, for a
            crop to that size; Pillow's ``ImageOps.cover``.
    """

    is_fixed = True
    unwritten = (("cover", False),)

    def __init__(
        self,
        size: checks.IntOrInts | None,
        interpolation: checks.Interpolation = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
        cover: bool = False,
    ) -> None:
        given = checks.items_or_one("size", size, (1, 2))  # torchvision: [n] means n
        side = None if size is None else checks.side("size", given[0])
        self.size = checks.size("size", size) if len(given) == 2 else side
        self.max_size = None if max_size is None else checks.side("max_size", max_size)
        self.cover = checks.flag("cover", cover)
        super().__init__(interpolation, antialias)
        if self.cover and not isinstance(self.size, tuple):
            raise SpecError("cover", cover, "needs (height, width) as size; an int is the shorter side anyway")
        if self.size is None and self.max_size is None:
            raise SpecError("size", size, "needs max_size, the length of the longer side")
        if self.max_size is not None and self.size is not None:
            if isinstance(self.size, tuple):
                raise SpecError("max_size", max_size, "needs an int as size, the shorter side, or None")
            if self.max_size <= self.size:
                reason = f"must be greater than size ({self.size}); Resize(None, max_size={max_size}) makes the longer"
                raise SpecError("max_size", max_size, f"{reason} side {max_size}")

    def result(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) in pixels of an image of `height` x `width` after resizing.

        torchvision's `_compute_resized_output_size`: the longer side is truncated, not rounded.
        """
        if isinstance(self.size, tuple):
            rows, columns = self.size
            if self.cover:  # in the order of Pillow's arithmetic
                return max(rows, round(height / width * columns)), max(columns, round(width / height * rows))
            return rows, columns
        short, long = (width, height) if width <= height else (height, width)
        new_short, new_long = (short, long) if self.size is None else (self.size, int(self.size * long / short))
        if self.max_size is not None and (self.size is None or new_long > self.max_size):
            new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        new_short = max(1, new_short)  # a sliver under max_size would lose its last pixel
        return (new_long, new_short) if width <= height else (new_short, new_long)

    def size_after(self, size: Size | None) -> Size | None:
        if isinstance(self.size, tuple) and not self.cover:
            return self.size
        return None if size is None else self.result(*size)
