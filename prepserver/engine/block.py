"""A block: the rows of consecutive positions in some lanes, as one array of bytes that travels between machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.memory.ring import Ring, field_array
from prepserver.protocol.layout import Field, RingLayout

Arrays = dict[str, npt.NDArray[Any]]


def block_bytes(lanes: Iterable[tuple[Field, ...]], count: int) -> int:
    """Bytes of `count` rows in lanes of these fields."""
    return sum(RingLayout(count, fields).nbytes for fields in lanes)


def split(buffer: npt.NDArray[np.uint8], lanes: Iterable[tuple[Field, ...]], count: int) -> list[Arrays]:
    """The arrays of each lane in a block, by field, shape ``(count, *field.shape)``: views."""
    found, at = [], 0
    for fields in lanes:
        layout = RingLayout(count, fields)
        part = buffer[at : at + layout.nbytes]
        found.append({field.name: field_array(part, layout, field.name) for field in fields})
        at += layout.nbytes
    return found


def copy_into(ring: Ring, position: int, arrays: Arrays) -> None:
    """Copies the rows of positions from `position` on to where they belong in a ring."""
    for name, rows in arrays.items():
        done = 0
        while done < len(rows):
            into = ring.run(name, position + done, len(rows) - done)
            into[:] = rows[done : done + len(into)]
            done += len(into)


class BlockRows:
    """Rows of one lane in the block that is being made: `prepserver.worker.streams.Rows`.

    Args:
        fields: Of the lane.
    """

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self._first = 0
        self._arrays: Arrays = {}

    def begin(self, first: int, arrays: Arrays) -> None:
        """From now on, rows go to `arrays`, which begin with position `first`."""
        self._first, self._arrays = first, arrays

    def row(self, field: str, position: int) -> npt.NDArray[Any]:
        """See `Rows`."""
        row: npt.NDArray[Any] = self._arrays[field][position - self._first, ...]
        return row

    def run(self, field: str, position: int, count: int) -> npt.NDArray[Any]:
        """See `Rows`."""
        return self._arrays[field][position - self._first :][:count]

    def put(self, field: str, position: int, value: Any) -> None:
        """See `Rows`."""
        self._arrays[field][position - self._first] = value
