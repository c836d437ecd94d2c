"""Rows of a mapped ring as numpy arrays: the worker's side, and the reference for the client's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.memory.mapping import Mapping
from prepserver.memory.segment import check_segment
from prepserver.protocol.layout import RingLayout


class Ring:
    """A ring mapped whole and writable, where a worker puts rows; `fd` may be closed afterwards.

    Raises:
        SegmentError: The descriptor does not fit the layout.
    """

    def __init__(self, fd: int, layout: RingLayout) -> None:
        check_segment(fd, layout.nbytes)
        self.layout = layout
        self.mapping = Mapping(fd, 0, layout.nbytes, writable=True)
        self._rows = layout.rows
        self._arrays = {f.name: field_array(self.mapping.buffer, layout, f.name) for f in layout.fields}

    def row(self, field: str, position: int) -> npt.NDArray[Any]:
        """Return the row of `position` in `field`: a C-contiguous view into the ring (0-d for a scalar field)."""
        row: npt.NDArray[Any] = self._arrays[field][position % self._rows, ...]
        return row

    def put(self, field: str, position: int, value: Any) -> None:
        """Write the row of `position` in `field`, a number or an array of the field's shape."""
        self._arrays[field][position % self._rows] = value

    def run(self, field: str, position: int, count: int) -> npt.NDArray[Any]:
        """Return the rows of `count` positions from `position` on: a view, shorter where the ring ends."""
        first = position % self._rows
        return self._arrays[field][first : first + count]


def field_array(buffer: Any, layout: RingLayout, name: str) -> npt.NDArray[Any]:
    """Return the dense array of field `name` inside a buffer over the whole segment."""
    field = layout.field(name)
    count = layout.rows * math.prod(field.shape)
    flat = np.frombuffer(buffer, dtype=field.dtype, count=count, offset=layout.offset(name))
    return flat.reshape(layout.rows, *field.shape)
