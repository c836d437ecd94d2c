"""Rows of a mapped ring as numpy arrays: the worker's side, and the reference for the client's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.memory.mapping import MemoryMap
from prepserver.memory.segment import check_segment
from prepserver.protocol.layout import RingLayout


class ArrayRows:
    """`count` rows in `arrays`, which has one for each field: position `first` + k is in row k % `count`."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], count: int, first: int = 0) -> None:
        self.arrays, self._count, self._first = arrays, count, first

    def row(self, field: str, position: int) -> npt.NDArray[Any]:
        """Return the row of `position` in `field`: a C-contiguous view (0-d for a scalar field)."""
        row: npt.NDArray[Any] = self.arrays[field][(position - self._first) % self._count, ...]
        return row

    def put(self, field: str, position: int, value: Any) -> None:
        """Write the row of `position` in `field`, a number or an array of the field's shape."""
        self.arrays[field][(position - self._first) % self._count] = value

    def run(self, field: str, position: int, count: int) -> npt.NDArray[Any]:
        """Return the rows of `count` positions from `position` on: a view, shorter where the arrays end."""
        begin = (position - self._first) % self._count
        return self.arrays[field][begin : begin + count]


class Ring(ArrayRows):
    """A ring mapped whole and writable, for a worker; `fd` may be closed then. Raises `SegmentError` unless it fits."""

    def __init__(self, fd: int, layout: RingLayout) -> None:
        check_segment(fd, layout.nbytes)
        self.layout = layout
        self.mapping = MemoryMap(fd, 0, layout.nbytes, writable=True)
        arrays = {f.name: field_array(self.mapping.buffer, layout, f.name) for f in layout.fields}
        super().__init__(arrays, layout.rows)


def field_array(buffer: Any, layout: RingLayout, name: str) -> npt.NDArray[Any]:
    """Return the dense array of field `name` inside a buffer over the whole segment."""
    field = layout.field(name)
    count = layout.rows * math.prod(field.shape)
    flat = np.frombuffer(buffer, dtype=field.dtype, count=count, offset=layout.offset(name))
    return flat.reshape(layout.rows, *field.shape)
