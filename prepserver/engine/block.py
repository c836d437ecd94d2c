"""Rows in transit: the arrays that an actor sends, and the places in rings where the bridge receives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.memory.ring import ArrayRows, Ring
from prepserver.protocol.layout import Field


def runs(ring: Ring, position: int, count: int) -> Iterator[npt.NDArray[Any]]:
    """The rows of `count` positions from `position` on in a ring: one or two views for each field."""
    for field in ring.layout.fields:
        done = 0
        while done < count:
            into = ring.run(field.name, position + done, count - done)
            yield into
            done += len(into)


class BlockRows(ArrayRows):
    """Rows of one lane in the task that is being made: of each of these fields, an array ``(count, *field.shape)``."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        super().__init__({}, 0)
        self._fields = fields
        self._room: dict[str, npt.NDArray[Any]] = {}
        self._spare: dict[str, npt.NDArray[Any]] = {}

    def begin(self, first: int, count: int) -> None:
        """Begins a task: rows go to arrays that begin with position `first`.

        The arrays of the task before stay unchanged until the next call, because they are still being sent.
        """
        self._first, self._count, self._room, self._spare = first, count, self._spare, self._room
        for field in self._fields:
            if len(self._room.get(field.name, ())) < count:
                self._room[field.name] = np.empty((count, *field.shape), field.dtype)
        self.arrays = {field.name: self._room[field.name][:count] for field in self._fields}
