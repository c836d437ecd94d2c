"""`Mosaic`: four samples in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Boxes, Kind, Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class Mosaic(Op):
    """The sample and three others, drawn at random, around a random point, as YOLO's mosaics.

    The four images meet at a point of a canvas of twice the `size`, each shrunk or enlarged to fit into `size`. The
    others come from the whole source, and ops before this one are done to each of the four. What is not on the images'
    plane, such as the label and the index, is the sample's own.

    Attributes:
        size: (height, width) in pixels of a quarter of the canvas; an int means a square. Crop the canvas afterwards.
        center: Where the images meet: least and greatest share of `size` in both directions, 0 to 2.
        fill: Value of the canvas where no image lies: one for all channels, or one for each.
        interpolation: "bilinear" or "bicubic", or torchvision's ``InterpolationMode`` of that name.
    """

    moves = True
    needs_uint8 = True
    nests = False
    partners = 3

    size: tuple[int, int]
    center: tuple[float, float]
    fill: tuple[float, ...]
    interpolation: str

    def __init__(
        self,
        size: int | Sequence[int],
        center: Sequence[float] = (0.5, 1.5),
        fill: float | Sequence[float] = 114,
        interpolation: str | Enum = "bilinear",
    ) -> None:
        self._keep(
            size=checks.size("size", size),
            center=checks.number_range("center", center, 0.0, 2.0),
            fill=checks.fill("fill", fill),
            interpolation=checks.interpolation("interpolation", interpolation),
        )
        if 2 * max(self.size) > checks.MAX_SIDE_PX:
            raise SpecError("size", size, f"must be at most {checks.MAX_SIDE_PX // 2}: the canvas is twice as large")

    def size_after(self, size: Size | None) -> Size:
        return 2 * self.size[0], 2 * self.size[1]

    def kind_after(self, kind: Kind) -> Kind:
        if isinstance(kind, Boxes) and kind.count is not None:
            raise SpecError("op", "Mosaic", "cannot follow PadBoxes: put that after it")
        return super(Mosaic, self).kind_after(kind)
