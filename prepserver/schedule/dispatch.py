"""Which rows are made next, and by whom: the emptiest worker first, and the stream whose jobs have least ready."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from prepserver.protocol.work import MAX_CHUNK_ROWS
from prepserver.schedule.actions import Action, Submit
from prepserver.schedule.records import Chunk
from prepserver.schedule.stream import Stream
from prepserver.schedule.table import Table
from prepserver.schedule.workers import SLOW_NS, TASKS_PER_WORKER, Task, Workers

SETTLED_CHUNKS = 64
"""After this many chunks a stream switches to larger ones, because the daemon pays per wake-up."""

GROWN = (4, 2)
"""How many times larger: the first for which there is room."""

TURN_NS = 250_000_000
"""Streams that were given the same worker time, up to this difference, are served by what their jobs have ready."""


class Dispatch:
    """See the module.

    Args:
        table: All streams.
        workers: All workers.
        chunk_rows: Rows in a chunk, up to four times as many once a stream has got going. Small chunks spread a batch
            over the workers (a short wait for the first batch), large ones cost fewer messages.
        meet: Joins early streams with those that have come by: see `prepserver.schedule.meeting`.
    """

    def __init__(self, table: Table, workers: Workers, chunk_rows: int, meet: Callable[[], list[Action]]) -> None:
        self._table = table
        self._workers = workers
        self.chunk_rows = chunk_rows
        self._meet = meet
        self._task_ids = itertools.count(1)
        self._served = itertools.count(1)
        self._turn_ns = 0  # what each stream was given that always wanted something, in whole turns

    def give_out(self) -> list[Action]:
        """Hands chunks to the workers that have room for them."""
        actions: list[Action] = []
        streams = self._table.streams
        for stream in streams.values():
            # The jobs that needed a lost chunk may be gone; those beyond it must hear of their rows now, for
            # with a full window nothing else may ever happen here.
            if stream.chunks.has_lost and stream.drop_unneeded():
                actions += stream.announcements()
        if not streams:
            return actions
        actions += self._meet()
        while (slot := self._workers.emptiest()) is not None and (found := self._next_chunk()) is not None:
            stream, chunk = found
            task_id = next(self._task_ids)
            foreseen_ns = (stream.row_ns(chunk.lanes) or 0) * chunk.count
            stream.served_ns = max(stream.served_ns, self._turn_ns) + foreseen_ns
            self._workers.give(slot, task_id, Task(stream.id, chunk, slot.id, foreseen_ns=foreseen_ns))
            actions.append(Submit(slot.id, task_id, stream.id, chunk.lanes, chunk.position, chunk.count))
            actions += self._meet()
        return actions

    def _next_chunk(self) -> tuple[Stream, Chunk] | None:
        streams = self._table.streams
        if len(streams) == 1:
            order = list(streams.values())
        else:
            # By what is ready and not by what is given out: a stream that lacks the last rows of a batch (one chunk
            # lost, or a large batch in a small ring) would wait for ever for those that are consumed at once.
            # Where jobs wait on several streams, these take turns. But first of all by the time that it has cost: jobs
            # whose rows take a second each wait at all times, and would have all workers.
            order = sorted(
                (s for s in streams.values() if s.lanes),
                key=lambda s: (self._turn_of(s), s.ready_rows(), s.last_served),
            )
        for stream in order:
            most = self._chunk_rows_of(stream) if stream.lanes else 0
            chunk = stream.next_chunk(most, min(most, self.chunk_rows)) if most else None
            if chunk is not None:
                self._turn_ns = self._turn_of(stream) * TURN_NS
                stream.last_served = next(self._served)
                return stream, chunk
        return None

    def _turn_of(self, stream: Stream) -> int:
        """Who did not want anything for a while has no claim to more than its part of now."""
        return max(stream.served_ns, self._turn_ns) // TURN_NS

    def _chunk_rows_of(self, stream: Stream) -> int:
        """Rows in the next chunk of a stream: few until its jobs have got going, then more where they do not crowd.

        A first batch is sooner there when all workers have a share of it; later on only the rate counts. The ring
        must hold twice what all workers have in hand, or they would wait for each other. No more in any case than a
        worker makes in `SLOW_NS`, as the last chunk shows; and a single one, before there was a chunk of these lanes.
        """
        row_ns = stream.row_ns(stream.lanes_at(stream.head))
        if row_ns is None:
            return 1  # which may take a minute: nobody knows yet
        most = self.chunk_rows
        if stream.rows_filled >= SETTLED_CHUNKS * self.chunk_rows:
            for times in GROWN:
                grown = min(times * self.chunk_rows, MAX_CHUNK_ROWS)
                if 2 * len(self._workers.slots) * TASKS_PER_WORKER * grown <= stream.ring_rows:
                    most = grown
                    break
        return max(1, min(most, SLOW_NS // max(1, row_ns)))
