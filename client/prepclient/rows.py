"""A ring as the client sees it: runs of rows as torch tensors.

What user code can touch is mapped read-only, so that an in-place operation cannot reach another job's batch:
it is a segmentation fault instead. Page-locking needs a writable mapping, which no user code ever sees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy.typing as npt
import torch

from prepserver.memory.mapping import Mapping
from prepserver.memory.ring import field_array
from prepserver.memory.segment import check_segment
from prepserver.protocol.layout import PAGE_BYTES, RingLayout, whole_page_rows

CHUNK_BYTES = 64 << 30
"""About so much is page-locked at a time: a call for 512 GiB fails in the driver (LMCache#5177)."""

DTYPES = {"uint8": torch.uint8, "float16": torch.float16, "float32": torch.float32, "int64": torch.int64}


class Rows:
    """Read access to the rows of one ring.

    Args:
        layout: Where its fields lie.
        images: For each view all stored images, shape ``(rows or 2 * rows, *row)``; twice where the memory is
            mapped twice end to end, so that any run is one piece.
        label: int64, shape ``(rows,)``.
        index: int64, shape ``(rows,)``.
        cuts: Rows before which a run of images is cut: a device's copy must not straddle two page-locked chunks.
    """

    def __init__(
        self,
        layout: RingLayout,
        images: Sequence[torch.Tensor],
        label: npt.NDArray[Any],
        index: npt.NDArray[Any],
        cuts: Sequence[int] = (),
    ) -> None:
        self.layout = layout
        self._cuts = cuts
        self._images = images
        self._small = {"label": label, "index": index}
        self._mapped_twice = len(images[0]) == 2 * layout.rows

    @property
    def views(self) -> int:
        """Images of each sample."""
        return len(self._images)

    def images(self, start: int, stop: int, view: int = 0) -> list[torch.Tensor]:
        """One view's stored images of positions [start, stop): no copies, one piece, or two where they wrap."""
        spans, images = self.layout.spans(start, stop), self._images[view]
        if self._mapped_twice or not spans:  # an empty batch is one piece, too
            first = start % self.layout.rows
            return [images[first : first + stop - start]]
        return [images[a:b] for first, last in spans for a, b in self._uncut(first, last)]

    def _uncut(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        return itertools.pairwise([first, *(cut for cut in self._cuts if first < cut < last), last])

    @property
    def cut_bytes(self) -> list[int]:
        """Offsets in the segment at which page-locking is cut. All are on pages; each view begins at one."""
        if not self._cuts:
            return []
        row_bytes = self.layout.field("image").row_bytes
        return [self.layout.offset(name) + row * row_bytes for name in self.layout.images for row in (0, *self._cuts)][
            1:
        ]

    def small(self, name: str, start: int, stop: int) -> list[npt.NDArray[Any]]:
        """``label`` or ``index`` of positions [start, stop), int64: no copies, in pieces where they wrap."""
        array = self._small[name]
        return [array[a:b] for a, b in self.layout.spans(start, stop)]

    def writable_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All fields of a ring that was mapped writable."""
        images = {name: image.numpy() for name, image in zip(self.layout.images, self._images, strict=True)}
        return images | self._small

    @classmethod
    def map(cls, fd: int, layout: RingLayout) -> Rows:
        """Maps a segment read-only, its images twice end to end where they fill whole pages.

        Raises:
            SegmentError: The descriptor does not fit the layout.
        """
        check_segment(fd, layout.nbytes)
        image_bytes = layout.rows * layout.field("image").row_bytes
        copies = 2 if image_bytes % PAGE_BYTES == 0 else 1
        whole_pages = -(-image_bytes // PAGE_BYTES) * PAGE_BYTES
        mapped = [
            Mapping(fd, layout.offset(name), whole_pages, writable=False, copies=copies) for name in layout.images
        ]
        whole = Mapping(fd, 0, layout.nbytes, writable=False)
        return cls(
            layout,
            [_image_tensor(images, layout, 0, copies * layout.rows) for images in mapped],
            field_array(whole.buffer, layout, "label"),
            field_array(whole.buffer, layout, "index"),
        )

    @classmethod
    def map_writable(cls, fd: int, layout: RingLayout, chunk_bytes: int = CHUNK_BYTES) -> tuple[Rows, Mapping]:
        """Maps a segment writable and once, for page-locking; nothing of it may reach user code.

        Args:
            fd: The segment.
            layout: Of it.
            chunk_bytes: Most of one view that is page-locked at a time, rounded to rows that fill whole pages.

        Raises:
            SegmentError: The descriptor does not fit the layout.
        """
        check_segment(fd, layout.nbytes)
        whole = Mapping(fd, 0, layout.nbytes, writable=True)
        row_bytes = layout.field("image").row_bytes
        least = whole_page_rows(row_bytes)
        step = max(least, chunk_bytes // row_bytes // least * least)
        cuts = range(step, layout.rows, step) if layout.nbytes > chunk_bytes else ()
        rows = cls(
            layout,
            [_image_tensor(whole, layout, layout.offset(name), layout.rows) for name in layout.images],
            field_array(whole.buffer, layout, "label"),
            field_array(whole.buffer, layout, "index"),
            cuts,
        )
        return rows, whole


def _image_tensor(mapping: Mapping, layout: RingLayout, offset: int, rows: int) -> torch.Tensor:
    field = layout.field("image")
    dtype = DTYPES[field.dtype]
    # One storage that begins where the mapping begins: is_pinned() looks at a storage's base.
    flat = torch.frombuffer(mapping.buffer, dtype=torch.uint8)
    run = flat[offset : offset + rows * field.row_bytes]
    assert math.prod(field.shape) * dtype.itemsize == field.row_bytes
    return run.view(dtype).view(rows, *field.shape)
