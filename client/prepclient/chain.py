"""The rings of one job in the order of positions: mostly one, a second while the job moves to another ring.

A job moves when the daemon separates a job that lags from those that wait for it: from some position on, its
rows are in new memory, and what it still holds of the old is not refilled. A batch may lie across the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prepclient.rows import Rows


class Numbers:
    """A fresh tensor for one number per row, made before the rows are there and filled after.

    Args:
        count: How many.
        dtype: Of the numbers.
        parts: Where they come from, in order.

    Attributes:
        tensor: Shape ``(count,)``.
    """

    __slots__ = ("_copies", "tensor")

    def __init__(self, count: int, dtype: str, parts: list[npt.NDArray[Any]]) -> None:
        array = np.empty(count, dtype)
        ends = list(itertools.accumulate(map(len, parts)))
        self._copies = [(array[end - len(part) : end], part) for end, part in zip(ends, parts, strict=True)]
        self.tensor = torch.from_numpy(array)

    def fill(self) -> torch.Tensor:
        """Copies what the rows hold now; may be called again."""
        for mine, theirs in self._copies:
            mine[:] = theirs
        return self.tensor


@dataclass(slots=True)
class Link:
    """A ring and the first position whose row is in it."""

    start: int
    rows: Rows


class RingChain:
    """See the module.

    Args:
        rows: Of the first ring, for all positions until another is added.

    Attributes:
        rings: How many there have been: with another one, rows that are still to come may lie elsewhere.
    """

    def __init__(self, rows: Rows) -> None:
        self.links = [Link(0, rows)]
        self.rings = 1

    def add(self, start: int, rows: Rows) -> None:
        """From `start` on, rows are in another ring. One that begins there or later is never reached, and let go of."""
        while len(self.links) > 1 and self.links[-1].start >= start:
            self.links.pop().rows.close()
        self.links.append(Link(start, rows))
        self.rings += 1

    def forget_below(self, position: int) -> None:
        """Lets go of rings whose rows are all below `position`."""
        while len(self.links) > 1 and self.links[1].start <= position:
            self.links.pop(0).rows.close()

    def close(self) -> None:
        """Lets go of all page-locks: no copy reads any row."""
        for link in self.links:
            link.rows.close()

    def parts(self, start: int, stop: int) -> list[list[torch.Tensor]]:
        """Each dense field's rows of positions [start, stop), in one piece but where they wrap or change rings.

        The pieces are no copies. No rows are one piece, too.
        """
        runs = list(self._runs(start, stop)) or [(self.links[-1].rows, start, stop)]
        fields = range(self.links[0].rows.dense_fields)
        return [[part for rows, a, b in runs for part in rows.parts(a, b, field)] for field in fields]

    def scalars(self, start: int, stop: int) -> dict[str, Numbers]:
        """Every field of one number a row, of positions [start, stop)."""
        runs = list(self._runs(start, stop))
        return {
            field.name: Numbers(
                stop - start, field.dtype, [part for rows, a, b in runs for part in rows.scalars(field.name, a, b)]
            )
            for field in self.links[0].rows.layout.scalars
        }

    def _runs(self, start: int, stop: int) -> Iterator[tuple[Rows, int, int]]:
        ends = [*(link.start for link in self.links[1:]), stop]
        for link, end in zip(self.links, ends, strict=True):
            a, b = max(start, link.start), min(stop, end)
            if a < b:
                yield link.rows, a, b
