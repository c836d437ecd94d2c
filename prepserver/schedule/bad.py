"""The bad rows of a stream: which rows of its window hold a replacement, and in which lanes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from prepserver.schedule.records import BadRow, Chunk

BAD_REASONS_TOLD = 64
"""Most reasons in one announcement. Further bad rows have an empty reason, which keeps the message small."""


class BadRows:
    """Bad rows by position, each with all lanes in which it is bad."""

    def __init__(self, rows: dict[int, list[BadRow]] | None = None) -> None:
        self.at: dict[int, list[BadRow]] = rows or {}

    def __bool__(self) -> bool:
        return bool(self.at)

    def copy(self) -> BadRows:
        """A copy for a stream that parts from this one."""
        return BadRows({position: list(rows) for position, rows in self.at.items()})

    def made(self, chunk: Chunk, bad: Iterable[BadRow]) -> None:
        """Replaces the bad rows of a chunk by those that its last run found."""
        for position in range(chunk.position, chunk.position + chunk.count) if self.at else ():
            self._forget(position, chunk.lanes)
        for row in bad:
            self.at.setdefault(row.position, []).append(row if row.lanes else replace(row, lanes=chunk.lanes))

    def _forget(self, position: int, lanes: tuple[int, ...]) -> None:
        rows = self.at.pop(position, ())
        others = [(row, tuple(x for x in row.lanes if x not in lanes)) for row in rows]
        if kept := [replace(row, lanes=left) for row, left in others if left]:
            self.at[position] = kept

    def between(self, lane: int, start: int, stop: int) -> tuple[tuple[int, int, str], ...]:
        """(position, sample index, reason) of the bad rows of `lane` in [start, stop)."""
        if not self.at:
            return ()
        found = [
            row
            for position in sorted(p for p in self.at if start <= p < stop)
            for row in self.at[position]
            if lane in row.lanes
        ]
        return tuple(
            (row.position, row.index, row.reason if i < BAD_REASONS_TOLD else "") for i, row in enumerate(found)
        )

    def rename(self, renamed: dict[int, list[int]]) -> None:
        """Copies the bad rows of lanes to the new lanes that continue them."""
        for position, rows in self.at.items():
            self.at[position] = [
                replace(row, lanes=tuple(new for lane in row.lanes for new in (lane, *renamed.get(lane, ()))))
                for row in rows
            ]

    def join(self, other: BadRows, lanes: set[int]) -> None:
        """Adds the bad rows of a stream that joins; `lanes` join with their rings."""
        for position, rows in other.at.items():
            if position not in self.at:
                self.at[position] = list(rows)
            else:
                self.at[position] += [row for row in rows if lanes & set(row.lanes)]

    def forget_below(self, low: int) -> None:
        """Drops rows below `low`, which nobody reads any more."""
        for position in [p for p in self.at if p < low]:
            del self.at[position]
