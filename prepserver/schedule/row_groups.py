"""Row groups that workers keep decoded: a chunk waits for a worker that has its group, if that is sooner.

Workers decode a row group of a Parquet file as a whole and keep the latest ones. A chunk whose group a worker keeps is
set aside for it while other workers have chunks of other groups to make. Workers do not report which groups they keep:
the account here is a guess, and a wrong guess costs only time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence

from prepserver.schedule.records import Chunk

DECODES_WAITED = 2
"""An idle worker decodes a group again if a worker that keeps it is busy for longer than this many decode times."""

RUN_MOST = 1 << 16
"""Positions that are looked at together, however large a ring and a group are: about 10 ms of the daemon's loop."""


class RowGroups:
    """The row groups of a source, for a stream whose neighbouring positions mostly lie in one group.

    `indices` is `prepserver.order.Order.indices`, `ends` are the ends of the groups, and a worker keeps groups of
    `kept_rows` rows in total.
    """

    def __init__(self, indices: Callable[[int, int], list[int]], ends: Sequence[int], kept_rows: int) -> None:
        self._indices = indices
        self._ends = ends
        self._kept_rows = kept_rows
        self._kept: defaultdict[int, OrderedDict[int, int]] = defaultdict(OrderedDict)  # worker -> group -> its rows
        self._keepers: defaultdict[int, set[int]] = defaultdict(set)  # the same by group -> workers
        self.decode_ns = 0  # how much longer a chunk takes if its group must be decoded
        # What waits for a worker, by group. Every event looks at all groups, but only at the first chunk of each.
        self.aside: dict[int, deque[Chunk]] = {}

    def fresh(self) -> RowGroups:
        """The same for another stream, of which workers keep nothing yet."""
        return RowGroups(self._indices, self._ends, self._kept_rows)

    def run(self, position: int, most: int) -> int:
        """How many positions from this one on, up to `most` and a limit, lie in one group."""
        begin, end = self._bounds(self._group_at(position))
        indices = self._indices(position, min(most, end - begin, RUN_MOST))
        return next((k for k, index in enumerate(indices) if k and not begin <= index < end), len(indices))

    def next_for(
        self,
        worker: int,
        cut: Callable[[Callable[[int], bool]], Chunk | None],
        busy_ns: Callable[[int], int | None],
        *,
        idle: bool,
    ) -> Chunk | None:
        """What a worker gets: a chunk that waits for no other worker, or, if it is `idle`, one that waits long.

        `cut` takes the next chunk of the stream, as long as possible if it waits for another worker: how many rows a
        worker gets at once is decided when it gets them, and `put_back` takes the others. `busy_ns` says how long a
        worker will be busy, or None if it gets no more tasks of the stream.
        """
        for group in self.aside:
            if not self._waits(worker, group, busy_ns):
                return self._taken(group)
        while (found := cut(lambda position: self._waits(worker, self._group_at(position), busy_ns))) is not None:
            group = self._group_at(found.position)
            if not self._waits(worker, group, busy_ns):
                return found
            self.aside.setdefault(group, deque()).append(found)
        for group in self.aside if idle else ():
            found_ns = (busy_ns(other) for other in self._keepers[group])
            if min(ns for ns in found_ns if ns is not None) > DECODES_WAITED * self.decode_ns:
                return self._taken(group)
        return None

    def put_back(self, rest: Chunk) -> None:
        """Sets aside what remains of a chunk of which a worker got the first rows."""
        self.aside.setdefault(self._group_at(rest.position), deque()).appendleft(rest)

    @property
    def first_aside(self) -> int | None:
        """The first position that was set aside; None if there is none."""
        return min((chunks[0].position for chunks in self.aside.values()), default=None)

    @property
    def awaited(self) -> set[int]:
        """The workers for which chunks were set aside."""
        return {worker for group in self.aside for worker in self._keepers[group]}

    def given(self, worker: int, position: int) -> bool:
        """Notes that a worker gets a chunk; returns whether it had the chunk's group."""
        group = self._group_at(position)
        kept = self._kept[worker]
        had = group in kept
        begin, end = self._bounds(group)
        kept[group] = end - begin
        kept.move_to_end(group)
        self._keepers[group].add(worker)
        while len(kept) > 1 and sum(kept.values()) > self._kept_rows:
            self._keepers[kept.popitem(last=False)[0]].discard(worker)
        return had

    def decoded(self, ns: int) -> None:
        """Notes how much longer a chunk took than others, because its group was decoded for it."""
        self.decode_ns += (max(0, ns) - self.decode_ns) // (4 if self.decode_ns else 1)

    def drop(self, is_needed: Callable[[int, int], bool]) -> list[int]:
        """Removes the chunks set aside that nobody needs any more; returns their positions."""
        gone: list[int] = []
        while self.aside:  # a job that needs a chunk needs all that follow
            group = min(self.aside, key=lambda each: self.aside[each][0].position)
            chunk = self.aside[group][0]
            if is_needed(chunk.position, chunk.count):
                break
            gone.append(self._taken(group).position)
        return gone

    def _taken(self, group: int) -> Chunk:
        """Takes the first waiting chunk of a group."""
        chunks = self.aside[group]
        chunk = chunks.popleft()
        if not chunks:
            del self.aside[group]
        return chunk

    def _waits(self, worker: int, group: int, busy_ns: Callable[[int], int | None]) -> bool:
        """Whether chunks of a group wait for other workers than this one."""
        keepers = self._keepers[group]
        return worker not in keepers and any(busy_ns(other) is not None for other in keepers)

    def _group_at(self, position: int) -> int:
        (index,) = self._indices(position, 1)
        return bisect_right(self._ends, index)

    def _bounds(self, group: int) -> tuple[int, int]:
        return (self._ends[group - 1] if group else 0), self._ends[group]
