"""A ring in the client: runs of its rows as torch tensors.

Memory that user code can touch is mapped read-only, so that an in-place operation is a segmentation fault and cannot
change another job's batch. Page-locking needs a writable mapping, which user code never sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch

from prepclient.pinning import HostPin, PinDriver
from prepserver.memory.mapping import MemoryMap
from prepserver.memory.ring import field_array
from prepserver.memory.segment import check_segment
from prepserver.protocol.layout import ITEM_BYTES, PAGE_BYTES, Field, RingLayout

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}


class MappedRing:
    """Read access to the rows of one ring.

    `dense` has all stored rows of each dense field, ``(rows, *row)``; or ``(2 * rows, *row)`` if the memory is mapped
    twice end to end, so that any run is one piece. `scalars` has the other fields by name, ``(rows,)``.
    """

    def __init__(
        self, layout: RingLayout, dense: Sequence[torch.Tensor], scalars: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        self.layout = layout
        self._dense = dense
        self._scalars = dict(scalars)
        self._pin: HostPin | None = None

    def parts(self, start: int, stop: int, field: int = 0) -> list[torch.Tensor]:
        """The rows [start, stop) of dense field number `field`: views, two if the run wraps."""
        spans, rows = self.layout.spans(start, stop), self._dense[field]
        if len(rows) == 2 * self.layout.rows or not spans:  # an empty batch is one piece
            first = start % self.layout.rows
            return [rows[first : first + stop - start]]
        return [rows[a:b] for a, b in spans]

    def scalars(self, name: str, start: int, stop: int) -> list[npt.NDArray[Any]]:
        """The rows [start, stop) of a scalar field: views, two if the run wraps, at least one."""
        array = self._scalars[name]
        return [array[a:b] for a, b in self.layout.spans(start, stop)] or [array[:0]]

    def writable_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All fields by name, of a ring that is mapped writable."""
        dense = {f.name: rows.numpy() for f, rows in zip(self.layout.dense, self._dense, strict=True)}
        return dense | self._scalars

    @classmethod
    def map(cls, fd: int, layout: RingLayout) -> MappedRing:
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
            mapped = MemoryMap(fd, layout.offset(field.name), whole_pages, writable=False, copies=copies)
            dense.append(_tensor(mapped, field, 0, copies * layout.rows))
        return cls(layout, dense, _scalars(MemoryMap(fd, 0, layout.nbytes, writable=False), layout))

    @classmethod
    def map_writable(cls, fd: int, layout: RingLayout) -> tuple[MappedRing, MemoryMap]:
        """Maps a segment writable and once, for page-locking; user code must not see it. Errors as `map`."""
        check_segment(fd, layout.nbytes)
        whole = MemoryMap(fd, 0, layout.nbytes, writable=True)
        dense = [_tensor(whole, field, layout.offset(field.name), layout.rows) for field in layout.dense]
        return cls(layout, dense, _scalars(whole, layout)), whole

    @classmethod
    def map_pinned(cls, fd: int, layout: RingLayout, driver: PinDriver) -> MappedRing:
        """As `map_writable`, page-locked from `lock` to `close`."""
        rows, mapping = cls.map_writable(fd, layout)
        rows._pin = HostPin(mapping.address, mapping.nbytes, driver, keep=mapping, absent_from=mapping.absent_from)
        return rows

    def lock(self) -> None:
        """Begins page-locking at the first call after `map_pinned`. A later call warns, once, if locking failed.

        After the first call the owner must call `close` before it unmaps the rows.
        """
        if self._pin is not None:
            self._pin.start()
            self._pin.warn_once()

    def close(self) -> None:
        """Ends the page-lock; no copy may read the rows any more. They stay mapped while a tensor uses them."""
        if self._pin is not None:
            self._pin.close()


def _scalars(mapping: MemoryMap, layout: RingLayout) -> dict[str, npt.NDArray[Any]]:
    return {field.name: field_array(mapping.buffer, layout, field.name) for field in layout.scalars}


def _tensor(mapping: MemoryMap, field: Field, offset: int, rows: int) -> torch.Tensor:
    dtype = DTYPES[field.dtype]
    # One storage that begins where the mapping begins, because is_pinned() looks at the start of a storage.
    flat = torch.frombuffer(mapping.buffer, dtype=torch.uint8)
    run = flat[offset : offset + rows * field.row_bytes]
    assert math.prod(field.shape) * dtype.itemsize == field.row_bytes
    return run.view(dtype).view(rows, *field.shape)
