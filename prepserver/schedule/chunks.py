"""The chunks of a stream: given out, running, made, or lost and to be made again."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Chunks:
    """Chunks by their first position.

    All rows below `first_unmade` are in the rings, and no worker writes any row below `first_written`.
    """

    def __init__(self) -> None:
        self._lost: list[tuple[int, int]] = []  # heap of (position, count)
        self._unmade: list[int] = []  # heap of chunks given out; `first_unmade` cleans it
        self._made: set[int] = set()
        self._running: dict[int, int] = {}  # task -> position
        self._running_at: dict[int, int] = {}  # position -> number of tasks that run it
        self._starts: list[int] = []  # heap of those positions; `first_written` cleans it

    def given(self, position: int) -> None:
        """A chunk is given out for the first time."""
        heapq.heappush(self._unmade, position)

    def started(self, task: int, position: int) -> None:
        """A worker was given a chunk as `task`."""
        self._running[task] = position
        tasks = self._running_at.get(position, 0)
        if not tasks:
            heapq.heappush(self._starts, position)
        self._running_at[position] = tasks + 1

    def ended(self, task: int) -> None:
        """No worker runs `task` any more: it writes no row of it."""
        position = self._running.pop(task)
        tasks = self._running_at[position] - 1
        if tasks:
            self._running_at[position] = tasks
        else:
            del self._running_at[position]

    def made(self, position: int) -> None:
        """All rows of a chunk are in the rings."""
        self._made.add(position)

    def lost(self, position: int, count: int) -> None:
        """A chunk is to be made again, before all others."""
        heapq.heappush(self._lost, (position, count))

    def next_lost(self) -> tuple[int, int] | None:
        """Takes the first lost chunk that no other worker has made meanwhile: (position, count)."""
        while self._lost:
            position, count = heapq.heappop(self._lost)
            if not self.is_made(position):
                return position, count
        return None

    def drop_lost(self, is_needed: Callable[[int, int], bool]) -> bool:
        """Counts lost chunks that nobody needs as made; whether there were any."""
        kept = [(position, count) for position, count in self._lost if is_needed(position, count)]
        if len(kept) == len(self._lost):
            return False
        self._made |= {position for position, count in self._lost if not is_needed(position, count)}
        heapq.heapify(kept)
        self._lost = kept
        return True

    @property
    def has_lost(self) -> bool:
        """Whether chunks are to be made again."""
        return bool(self._lost)

    @property
    def first_unmade(self) -> int | None:
        """The first chunk that was given out and is not made; None if all are."""
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
        while heap and self._running_at.get(heap[0], 0) == 0:
            heapq.heappop(heap)
        return heap[0] if heap else None

    @property
    def running(self) -> frozenset[int]:
        """The tasks that workers run."""
        return frozenset(self._running)
