"""Chunks that are made twice: one that takes far too long is given to a second worker, and the first to finish counts.

The bytes are equal, but on their way rows hold values that are not final. So nobody is told of a chunk before the
other worker that runs it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from prepserver.schedule.actions import Action, KillWorker
from prepserver.schedule.records import BadRow
from prepserver.schedule.stream import Stream
from prepserver.schedule.table import Table
from prepserver.schedule.workers import Task, Workers

TWICE_S = 2.0
"""A chunk that runs for so long, and for twice the time foreseen, while workers idle and a job waits is made a second
time. An ordinary one takes 10 to 50 ms."""


class Twice:
    """See the module."""

    def __init__(self, table: Table, workers: Workers) -> None:
        self._table = table
        self._workers = workers

    def look(self, now_s: float) -> None:
        """Has late chunks made a second time, where workers idle and jobs wait. Call it several times a second."""
        late = []
        for slot, oldest in self._workers.oldest():
            if oldest.since_s is None:
                oldest.since_s = now_s
            elif now_s - oldest.since_s > max(TWICE_S, 2e-9 * oldest.foreseen_ns):
                # what is queued after it waits just as long
                late += [t for t in map(self._workers.tasks.__getitem__, slot.tasks) if not t.twice and self._delays(t)]
        if not self._workers.are_idle:
            return
        for task in late:
            task.twice = True
            stream = self._table.streams[task.stream]
            stream.twice.add(task.chunk.position)
            stream.chunks.lost(task.chunk.position, task.chunk.count)

    def _delays(self, task: Task) -> bool:
        """Whether a job has nothing ready on a task's stream: while there is, a late chunk harms nobody."""
        stream = self._table.streams.get(task.stream)
        return stream is not None and not stream.ready_rows()

    def made(self, stream: Stream, task: Task, bad: Iterable[BadRow]) -> list[Action]:
        """A worker has made a chunk: its rows are announced, or the other worker that runs it is ended first."""
        position = task.chunk.position
        if position in stream.twice:
            if others := self._workers.at(stream.id, position):
                stream.half_made[position] = list(bad)
                return [KillWorker(worker) for worker in others]
            stream.half_made.pop(position, None)
            stream.twice.discard(position)
        stream.filled(task.chunk, bad)
        return [*stream.announcements()]

    def ended(self, task: Task) -> list[Action]:
        """A task has ended without a result: its rows are there if another worker has made them, else lost."""
        stream, position = self._table.streams.get(task.stream), task.chunk.position
        if stream is None or self._workers.at(task.stream, position):
            return []  # another one is at it still
        if position not in stream.half_made:
            stream.chunks.lost(position, task.chunk.count)
            return []
        stream.twice.discard(position)
        stream.filled(task.chunk, stream.half_made.pop(position))
        return [*stream.announcements()]
