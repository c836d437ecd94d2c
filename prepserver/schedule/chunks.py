"""The chunks of a stream: given out, running, made, or lost."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable


class Chunks:
    """Chunks by their first position.

    All rows below `first_unmade` are in the rings, and no worker writes any row below `first_written`.
    """

    def __init__(self) -> None:
        self._lost: list[tuple[int, int]] = []  # heap of (position, count)
        self._unmade: list[int] = []  # heap of chunks given out; `first_unmade` cleans it
        self._made: set[int] = set()
        self.running: Counter[int] = Counter()  # position -> number of tasks that run it
        self._starts: list[int] = []  # heap of those positions; `first_written` cleans it

    def given(self, position: int) -> None:
        """A chunk is given out for the first time."""
        heapq.heappush(self._unmade, position)

    def started(self, position: int) -> None:
        """A worker was given a task for a chunk."""
        if position not in self.running:
            heapq.heappush(self._starts, position)
        self.running[position] += 1

    def ended(self, position: int) -> None:
        """A task for a chunk has ended: its worker writes no row of it any more."""
        self.running[position] -= 1
        if not self.running[position]:
            del self.running[position]

    def made(self, position: int) -> None:
        """All rows of a chunk are in the rings."""
        self._made.add(position)

    def lost(self, position: int, count: int) -> None:
        """A chunk must be made again, before all others."""
        heapq.heappush(self._lost, (position, count))

    def next_lost(self) -> tuple[int, int] | None:
        """Takes the first lost chunk that no other worker has made in the meantime: (position, count)."""
        while self._lost:
            position, count = heapq.heappop(self._lost)
            if not self.is_made(position):
                return position, count
        return None

    def drop_lost(self, is_needed: Callable[[int, int], bool]) -> bool:
        """Marks unneeded lost chunks as made; returns whether there were any."""
        kept = [(position, count) for position, count in self._lost if is_needed(position, count)]
        if len(kept) == len(self._lost):
            return False
        self._made |= {position for position, count in self._lost if not is_needed(position, count)}
        heapq.heapify(kept)
        self._lost = kept
        return True

    @property
    def has_lost(self) -> bool:
        """Whether chunks must be made again."""
        return bool(self._lost)

    @property
    def first_unmade(self) -> int | None:
        """The first chunk that was given out and is not made yet; None if all are made."""
        heap = self._unmade
        while heap and heap[0] in self._made:
            self._made.discard(heapq.heappop(heap))
        return heap[0] if heap else None

    def is_made(self, position: int) -> bool:
        """Whether a chunk that was given out is made."""
        first = self.first_unmade
        return first is None or position < first or position in self._made

    @property
    def first_written(self) -> int | None:
        """The first chunk that a worker runs and may write; None if there is none."""
        heap = self._starts
        while heap and heap[0] not in self.running:
            heapq.heappop(heap)
        return heap[0] if heap else None
