"""Gives chunks to workers: the emptiest worker first, for the stream that has had the least worker time.

Streams whose times are in the same turn (`TURN_NS`) count as equal: the one whose jobs have the fewest rows ready comes
first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from prepserver.protocol.work import MAX_CHUNK_ROWS, Fill
from prepserver.schedule.actions import Action, Submit
from prepserver.schedule.records import Chunk
from prepserver.schedule.stream import Stream
from prepserver.schedule.table import Table
from prepserver.schedule.workers import SLOW_NS, TASKS_PER_WORKER, Task, Workers, WorkerSlot

SETTLED_CHUNKS = 64
"""After this many chunks a stream switches to larger ones, because the daemon pays per wake-up."""

GROWN = (4, 2)  # factors by which chunks grow: the first one for which the ring has room

GROWN_QUICK = (64, 32, 16, 8)
"""Factors tried before `GROWN`, if the grown chunk takes at most `QUICK_NS`. Only copied rows, a microsecond each, are
that quick."""

QUICK_NS = 1_000_000

TURN_NS = 250_000_000
"""A turn. Among streams whose worker time differs by less than this, the one whose jobs have the fewest rows ready is
served first."""


class Dispatch:
    """Chooses the next worker and its chunk. Before each choice it calls `meet`, which is `Meetings.join_early`.

    A chunk has `chunk_rows` rows at first, which spreads the first batch over the workers, and more later (see
    `GROWN`), which costs fewer messages. It has fewer if rows are large (see `CHUNK_BYTES`).
    """

    def __init__(self, table: Table, workers: Workers, chunk_rows: int, meet: Callable[[], list[Action]]) -> None:
        self._table = table
        self._workers = workers
        self.chunk_rows = chunk_rows
        self._meet = meet
        self._task_ids = itertools.count(1)
        self._served = itertools.count(1)
        self._turn_ns = 0  # worker time that each stream with enough work has had, in whole turns

    def give_out(self) -> list[Action]:
        """Hands chunks to the workers that have room for them."""
        actions: list[Action] = []
        streams = self._table.streams
        for stream in streams.values():
            # The jobs that needed a lost chunk may be gone. Jobs beyond it must be told of their rows now, because no
            # other event may follow while the window is full.
            if stream.has_waiting and stream.drop_unneeded():
                actions += stream.announcements()
        if not streams:
            return actions
        actions += self._meet()
        while (found := self._next()) is not None:
            slot, stream, chunk = found
            task_id = next(self._task_ids)
            foreseen_ns = (stream.row_ns(chunk.lanes) or 0) * chunk.count
            decodes = stream.groups is not None and not stream.groups.given(slot.id, chunk.position)
            if stream.groups is not None and decodes:
                foreseen_ns += stream.groups.decode_ns
            stream.served_ns = max(stream.served_ns, self._turn_ns) + foreseen_ns
            self._workers.give(slot, task_id, Task(stream.id, chunk, slot.id, None, decodes, foreseen_ns=foreseen_ns))
            alone = chunk.position in stream.suspects
            fill = Fill(task_id, stream.id, list(chunk.lanes), chunk.position, chunk.count, alone)
            actions.append(Submit(slot.id, fill))
            actions += self._meet()
        return actions

    def _next(self) -> tuple[WorkerSlot, Stream, Chunk] | None:
        """The next worker and the chunk that it gets; None if there is no worker or no chunk."""
        tried: set[frozenset[int]] = set()  # hundreds of workers may be barred from the same streams
        awaited: set[int] = set()
        for slot in self._workers.free():
            barred = frozenset(slot.barred)
            if barred in tried and slot.id not in awaited:
                continue
            if (found := self._next_chunk(slot)) is not None:
                return slot, *found
            tried.add(barred)
            # The chunks that are left, if any, were set aside for these workers.
            grouped = [stream.groups for stream in self._table.streams.values() if stream.groups is not None]
            awaited = {worker for groups in grouped for worker in groups.awaited}
            if not barred and not awaited:
                return None
        return None

    def _next_chunk(self, slot: WorkerSlot) -> tuple[Stream, Chunk] | None:
        streams = self._table.streams
        if len(streams) == 1:
            order = list(streams.values())
        else:
            # First by worker time: jobs whose rows take a second each always wait, and would get all workers. Then by
            # rows that are ready, not rows given out: a stream short of a batch's last rows would starve. Streams on
            # which jobs wait take turns.
            order = sorted(
                (s for s in streams.values() if s.lanes),
                key=lambda s: (self._turn_of(s), s.ready_rows(), s.last_served),
            )
        for stream in order:
            if stream.id in slot.barred:
                continue
            most = self._chunk_rows_of(stream, stream.lanes_at(stream.head)) if stream.lanes else 0
            chunk = self._chunk_of(stream, slot, most) if most else None
            if chunk is not None:
                self._turn_ns = self._turn_of(stream) * TURN_NS
                stream.last_served = next(self._served)
                return stream, chunk
        return None

    def _chunk_of(self, stream: Stream, slot: WorkerSlot, most: int) -> Chunk | None:
        """The chunk that a worker gets of a stream, of at most `most` rows."""
        least = min(most, stream.chunk_rows(self.chunk_rows))
        if stream.groups is None or stream.chunks.has_lost:
            return stream.next_chunk(most, least)
        chunk = stream.groups.next_for(
            slot.id,
            lambda waits: stream.next_chunk(most, least, waits),
            lambda worker: self._workers.busy_ns(worker, stream.id),
            idle=not slot.tasks,
        )
        if chunk is not None:
            chunk.lanes = stream.lanes_at(chunk.position)  # it may have waited
            most = self._chunk_rows_of(stream, chunk.lanes)
            if chunk.count > most:
                stream.groups.put_back(stream.split(chunk, most))
        return chunk

    def _turn_of(self, stream: Stream) -> int:
        """A stream's worker time in whole turns; a stream without work saves up no credit."""
        return max(stream.served_ns, self._turn_ns) // TURN_NS

    def _chunk_rows_of(self, stream: Stream, lanes: tuple[int, ...]) -> int:
        """Rows in the next chunk of some lanes of a stream.

        Chunks grow after `SETTLED_CHUNKS` if the ring can hold twice the rows that all workers have in hand. At the
        pace of the last chunk, a worker must finish within `SLOW_NS`; the first chunk of some lanes has one row.
        """
        row_ns = stream.row_ns(lanes)
        if row_ns is None:
            return 1  # it may take a minute
        first = most = stream.chunk_rows(self.chunk_rows)
        if stream.rows_filled >= SETTLED_CHUNKS * first:
            for times in (*GROWN_QUICK, *GROWN):
                grown = min(times * first, MAX_CHUNK_ROWS)
                if times > GROWN[0] and grown * row_ns > QUICK_NS:
                    continue
                if 2 * len(self._workers.slots) * TASKS_PER_WORKER * grown <= stream.ring_rows:
                    most = grown
                    break
        return max(1, min(most, SLOW_NS // max(1, row_ns)))
