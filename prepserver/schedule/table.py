"""The table of streams (with their lanes and cursors) and jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from prepserver.protocol.work import DropLane, DropStream
from prepserver.schedule.actions import Action, Move
from prepserver.schedule.records import Cursor, Job, Lane
from prepserver.schedule.stream import Stream


class Table:
    """The streams and jobs by their numbers."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.jobs: dict[int, Job] = {}
        self._stream_of: dict[int, int] = {}  # by cursor
        self._ids = itertools.count(1)

    def new_id(self) -> int:
        """A number that nothing else ever gets."""
        return next(self._ids)

    def knows(self, cursor: int) -> bool:
        """Whether there is such a rank."""
        return cursor in self._stream_of

    def stream_of(self, cursor: int) -> Stream:
        """The stream that a rank reads; `KeyError` if there is no such rank."""
        return self.streams[self._stream_of[cursor]]

    def cursor(self, cursor: int) -> Cursor:
        """A rank's cursor; `KeyError` if there is no such rank."""
        return self.stream_of(cursor).cursors[cursor]

    def put(self, cursor: Cursor, stream: Stream) -> None:
        """Makes a rank read `stream` from now on."""
        stream.cursors[cursor.id] = cursor
        stream.changed()
        self._stream_of[cursor.id] = stream.id

    def take(self, cursor_id: int) -> list[Action]:
        """Removes a rank, and its lane, its stream and its job if they have no other rank."""
        stream = self.streams[self._stream_of.pop(cursor_id)]
        gone = stream.cursors.pop(cursor_id)
        stream.changed()
        job = self.jobs[gone.job]
        del job.cursors[gone.rank]
        if not job.cursors:
            del self.jobs[job.id]
        actions: list[Action] = []
        if not any(c.lane == gone.lane for c in stream.cursors.values()):
            del stream.lanes[gone.lane]
            actions.append(DropLane(gone.lane))
        if not stream.lanes:
            del self.streams[stream.id]
            actions.append(DropStream(stream.id))
        return actions

    @staticmethod
    def move(cursor: Cursor, old: Lane, lane: Lane, start: int) -> Move:
        """Moves a rank to another lane from `start` on, or from the end of the rows that it brought to `old`."""
        # It reads rows that it brought from another stream where they are, even beyond this stream's head.
        start = max(start, cursor.moved_at, old.start)
        cursor.lane = lane.id
        cursor.moved_at = start
        cursor.moves += cursor.present
        return Move(cursor.id, lane.id, start)

    def ranks(self, job: Job, *, present: bool = True) -> list[Cursor]:
        """The ranks of a job that are present, or those that are absent."""
        found = map(self.cursor, job.cursors.values())
        return [cursor for cursor in found if cursor.present == present]

    def stream_of_job(self, job: Job) -> Stream:
        """The stream that all ranks of a job read."""
        return self.stream_of(next(iter(job.cursors.values())))

    def names(self, jobs: Iterable[int]) -> str:
        """The names of some jobs, for the log."""
        return ", ".join(sorted({repr(self.jobs[job].attach.job) for job in jobs if job in self.jobs}))
