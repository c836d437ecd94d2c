"""Gives a chunk that takes far too long to a second worker as well; the first to finish counts.

Both write equal bytes in the end, but a row that is being made holds other values. So the chunk is announced only after
the slower worker was killed and has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from prepserver.schedule.actions import Action, KillWorker
from prepserver.schedule.records import BadRow
from prepserver.schedule.stream import Stream
from prepserver.schedule.table import Table
from prepserver.schedule.workers import Task, Workers

TWICE_S = 2.0
"""A chunk is given out a second time if it has run for this long and for twice the expected time, a job waits for it,
and a worker is idle. An ordinary chunk takes 10 to 50 ms."""


class Twice:
    """Gives out late chunks again, and decides when a chunk of two workers is announced."""

    def __init__(self, table: Table, workers: Workers) -> None:
        self._table = table
        self._workers = workers

    def look(self, now_s: float) -> None:
        """Gives out late chunks again, one for each idle worker, the most urgent first; call it on each tick.

        It also starts the clock of each worker's current task, `Task.since_s`, by which `Workers.overdue` finds workers
        that take too long.
        """
        late: list[tuple[Task, Stream]] = []
        for slot, oldest in self._workers.oldest():
            if oldest.since_s is None:
                oldest.since_s = now_s
            elif now_s - oldest.since_s > max(TWICE_S, 2e-9 * oldest.foreseen_ns):
                slot.late = True
                # The tasks queued behind it are late, too.
                for task in map(self._workers.tasks.__getitem__, slot.tasks):
                    stream = self._table.streams.get(task.stream)
                    if stream is not None and not task.twice and not stream.ready_rows():  # a job waits
                        late.append((task, stream))
        idle = self._workers.idle
        for task, stream in sorted(late, key=lambda each: each[0].chunk.position - each[1].watermark):
            takes = next((slot for slot in idle if stream.id not in slot.barred), None)
            if takes is None:
                continue
            idle.remove(takes)
            task.twice = True
            stream.twice[task.chunk.position] = None
            stream.chunks.lost(task.chunk.position, task.chunk.count)

    def made(self, stream: Stream, task: Task, bad: Iterable[BadRow]) -> list[Action]:
        """Announces a chunk that a worker made, or first kills the other worker that runs it."""
        position = task.chunk.position
        if position in stream.twice:
            if others := self._workers.making(stream.id, position):
                stream.twice[position] = list(bad)
                return [KillWorker(worker) for worker in others]
            del stream.twice[position]
        stream.filled(task.chunk, bad)
        return [*stream.announcements()]

    def ended(self, task: Task) -> list[Action]:
        """Handles a task that ended without a result: unless another worker has made its rows, the chunk is lost."""
        stream, position = self._table.streams.get(task.stream), task.chunk.position
        if stream is None or self._workers.making(task.stream, position):
            return []  # another worker still runs it
        if (bad := stream.twice.get(position)) is None:
            stream.chunks.lost(position, task.chunk.count)
            return []
        del stream.twice[position]
        stream.filled(task.chunk, bad)
        return [*stream.announcements()]
