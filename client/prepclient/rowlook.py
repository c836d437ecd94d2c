"""The layout of a column's rows: as they lie in memory, and as the user sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch

from prepserver.pipeline.kinds import Image
from prepserver.pipeline.record import RowField

Layout: TypeAlias = Literal["HWC", "CHW"]


@dataclass(frozen=True, slots=True)
class RowLook:
    """Layout of a column's rows, as stored and as the user sees them."""

    shape: tuple[int, ...]  # stored shape of one row: ``(H, W, C)`` or ``(C, H, W)`` for an image
    dtype: torch.dtype = torch.uint8  # stored element type
    stored: Layout = "HWC"  # order of the stored axes
    # Order of the axes as the user sees them. The default, CHW over stored HWC, is torch's ``channels_last`` and needs
    # no copy.
    seen: Layout = "CHW"
    views: int = 1  # number of views; each is a tensor of its own in a batch
    name: str = "image"
    is_image: bool = True  # whether `Finish` applies; other columns are handed out as stored
    top: float | None = field(default=255.0, compare=False)  # greatest value of a pixel; see `Image`

    @classmethod
    def of(cls, field: RowField, views: int) -> RowLook:
        """The layout of one field of a pipeline's rows."""
        dtype, kind = getattr(torch, field.dtype), field.kind
        if not isinstance(kind, Image):
            return cls(field.shape, dtype, seen="HWC", views=views, name=field.column, is_image=False)
        stored: Layout = "CHW" if kind.layout == "CHW" else "HWC"
        seen: Layout = "HWC" if kind.layout == "HWC" else "CHW"
        return cls(field.shape, dtype, stored, seen, views, field.column, top=kind.top)

    @property
    def channels(self) -> int:
        """Number of channels of a row."""
        return self.shape[2] if self.stored == "HWC" else self.shape[0]

    @property
    def image(self) -> Image:
        """The kind of the images, as `prepserver.pipeline` describes it."""
        size = self.shape[:2] if self.stored == "HWC" else self.shape[1:]
        return Image((size[0], size[1]), self.channels, str(self.dtype).removeprefix("torch."), top=self.top)

    @property
    def nbytes(self) -> int:
        """Bytes of one stored row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, rows: torch.Tensor) -> torch.Tensor:
        """Stored rows ``(n, *shape)`` with the axes in the user's order: a view, never a copy."""
        if self.stored == self.seen:
            return rows
        return rows.permute(0, 3, 1, 2) if self.stored == "HWC" else rows.permute(0, 2, 3, 1)

    def back(self, images: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`view`."""
        if self.stored == self.seen:
            return images
        return images.permute(0, 2, 3, 1) if self.stored == "HWC" else images.permute(0, 3, 1, 2)

    def together(self, batches: Sequence[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The batches of all views as a tuple, or the batch of a single view."""
        return batches[0] if self.views == 1 else tuple(batches)
