"""A ring in the client: runs of rows as torch tensors.

Memory that user code can touch is mapped read-only: an in-place operation is a segmentation fault and cannot change
another job's batch. Page-locking needs a writable mapping, which no user code ever sees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Map
from typing import Any

import numpy.typing as npt
import torch

from prepclient.pinning import HostPin, PinDriver
from prepserver.memory.mapping import Mapping
from prepserver.memory.ring import field_array
from prepserver.memory.segment import check_segment
from prepserver.protocol.layout import ITEM_BYTES, PAGE_BYTES, Field, RingLayout, whole_page_rows

CHUNK_BYTES = 64 << 30
"""Most bytes of one page-lock call, roughly: the driver fails at 512 GiB (LMCache#5177)."""

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}


class Rows:
    """Read access to the rows of one ring.

    Args:
        layout: The ring's layout.
        dense: For each dense field all stored rows, shape ``(rows or 2 * rows, *row)``; twice if the memory is mapped
            twice end to end, so that any run is one piece.
        scalars: The other fields by name, shape ``(rows,)``.
        cuts: For each dense field the rows before which a run is cut, because a copy to a device must not straddle two
            page-locked chunks.
    """

    def __init__(
        self,
        layout: RingLayout,
        dense: Sequence[torch.Tensor],
        scalars: Map[str, npt.NDArray[Any]],
        cuts: Sequence[Sequence[int]] = (),
    ) -> None:
        self.layout = layout
        self._cuts = cuts or [()] * len(dense)
        self._dense = dense
        self._scalars = dict(scalars)
        self._pin: HostPin | None = None

    @property
    def dense_fields(self) -> int:
        """How many."""
        return len(self._dense)

    def parts(self, start: int, stop: int, field: int = 0) -> list[torch.Tensor]:
        """Stored rows of positions [start, stop) of dense field number `field`: views, two if the run wraps."""
        spans, rows = self.layout.spans(start, stop), self._dense[field]
        if len(rows) == 2 * self.layout.rows or not spans:  # an empty batch is one piece, too
            first = start % self.layout.rows
            return [rows[first : first + stop - start]]
        return [rows[a:b] for first, last in spans for a, b in self._uncut(first, last, field)]

    def _uncut(self, first: int, last: int, field: int) -> Iterator[tuple[int, int]]:
        return itertools.pairwise([first, *(cut for cut in self._cuts[field] if first < cut < last), last])

    @property
    def cut_bytes(self) -> list[int]:
        """Page-aligned offsets in the segment at which page-locking is cut; each field begins at one."""
        if not any(self._cuts):
            return []
        fields = zip(self.layout.dense, self._cuts, strict=True)
        return [self.layout.offset(f.name) + row * f.row_bytes for f, cuts in fields for row in (0, *cuts)][1:]

    def scalars(self, name: str, start: int, stop: int) -> list[npt.NDArray[Any]]:
        """A scalar field at positions [start, stop): views, two if the run wraps, at least one."""
        array = self._scalars[name]
        return [array[a:b] for a, b in self.layout.spans(start, stop)] or [array[:0]]

    def writable_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All fields of a ring that was mapped writable."""
        dense = {f.name: rows.numpy() for f, rows in zip(self.layout.dense, self._dense, strict=True)}
        return dense | self._scalars

    @classmethod
    def map(cls, fd: int, layout: RingLayout) -> Rows:
        """Maps a segment read-only, each dense field twice end to end if its rows fill whole pages.

        Raises:
            SegmentError: The descriptor does not fit the layout.
        """
        check_segment(fd, layout.nbytes)
        dense = []
        for field in layout.dense:
            nbytes = layout.rows * field.row_bytes
            copies = 2 if nbytes % PAGE_BYTES == 0 else 1
            whole_pages = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
            mapped = Mapping(fd, layout.offset(field.name), whole_pages, writable=False, copies=copies)
            dense.append(_tensor(mapped, field, 0, copies * layout.rows))
        return cls(layout, dense, _scalars(Mapping(fd, 0, layout.nbytes, writable=False), layout))

    @classmethod
    def map_writable(cls, fd: int, layout: RingLayout, chunk_bytes: int = CHUNK_BYTES) -> tuple[Rows, Mapping]:
        """Maps a segment writable and once, for page-locking; user code must not see it.

        Args:
            fd: The segment.
            layout: Its layout.
            chunk_bytes: Most bytes of one field in a page-lock call, rounded to rows that fill whole pages.

        Raises:
            SegmentError: The descriptor does not fit the layout.
        """
        check_segment(fd, layout.nbytes)
        whole = Mapping(fd, 0, layout.nbytes, writable=True)
        cuts: list[Sequence[int]] = []
        for field in layout.dense:
            least = whole_page_rows(field.row_bytes)
            step = max(least, chunk_bytes // field.row_bytes // least * least)
            cuts.append(range(step, layout.rows, step) if layout.nbytes > chunk_bytes else ())
        dense = [_tensor(whole, field, layout.offset(field.name), layout.rows) for field in layout.dense]
        return cls(layout, dense, _scalars(whole, layout), cuts), whole

    @classmethod
    def map_pinned(cls, fd: int, layout: RingLayout, driver: PinDriver) -> Rows:
        """Maps a segment as `map_writable` does, page-locked from `lock` to `close`.

        Raises:
            SegmentError: The descriptor does not fit the layout.
        """
        rows, mapping = cls.map_writable(fd, layout)
        rows._pin = HostPin(
            mapping.address, mapping.nbytes, driver, keep=mapping, cuts=rows.cut_bytes, absent_from=mapping.absent_from
        )
        return rows

    def lock(self) -> None:
        """Begins page-locking at the first call after `map_pinned`; later calls warn once if it was refused.

        From then on the owner must call `close` before it unmaps the rows.
        """
        if self._pin is not None:
            self._pin.start()
            self._pin.warn_once()

    def close(self) -> None:
        """Ends the page-lock; no copy may read these rows any more. They stay mapped while a tensor uses them."""
        if self._pin is not None:
            self._pin.close()


def _scalars(mapping: Mapping, layout: RingLayout) -> dict[str, npt.NDArray[Any]]:
    return {field.name: field_array(mapping.buffer, layout, field.name) for field in layout.scalars}


def _tensor(mapping: Mapping, field: Field, offset: int, rows: int) -> torch.Tensor:
    dtype = DTYPES[field.dtype]
    # One storage that begins where the mapping begins: is_pinned() looks at a storage's base.
    flat = torch.frombuffer(mapping.buffer, dtype=torch.uint8)
    run = flat[offset : offset + rows * field.row_bytes]
    assert math.prod(field.shape) * dtype.itemsize == field.row_bytes
    return run.view(dtype).view(rows, *field.shape)
