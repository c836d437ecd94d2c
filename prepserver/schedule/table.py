"""The table of streams (with their lanes and cursors) and jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from prepserver.schedule.actions import Action, DropLane, DropStream, Move
from prepserver.schedule.records import Cursor, Job, Lane
from prepserver.schedule.stream import Stream


class Inconsistent(AssertionError):
    """Two facts contradict each other."""


class Table:
    """See the module.

    Attributes:
        streams: By number.
        jobs: By number.
    """

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
        """The stream that a rank reads.

        Raises:
            KeyError: There is no such rank.
        """
        return self.streams[self._stream_of[cursor]]

    def cursor(self, cursor: int) -> Cursor:
        """A rank's cursor.

        Raises:
            KeyError: There is no such rank.
        """
        return self.stream_of(cursor).cursors[cursor]

    def put(self, cursor: Cursor, stream: Stream) -> None:
        """Makes a rank read `stream` from now on."""
        stream.cursors[cursor.id] = cursor
        stream.changed()
        self._stream_of[cursor.id] = stream.id

    def take(self, cursor_id: int) -> list[Action]:
        """Removes a rank, and with the last rank its lane, its stream and its job."""
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
        # It reads the rows that it brought from another stream where they are, even beyond this stream's head.
        start = max(start, cursor.entered, old.start)
        cursor.lane = lane.id
        cursor.entered = start
        cursor.moves += cursor.present
        return Move(cursor.id, lane.id, start)

    def ranks(self, job: Job, *, present: bool = True) -> list[Cursor]:
        """The ranks of a job that are present, or those that are absent."""
        found = map(self.cursor, job.cursors.values())
        return [cursor for cursor in found if cursor.present == present]

    def stream_of_job(self, job: Job) -> Stream:
        """The stream that all ranks of a job read."""
        return self.stream_of(next(iter(job.cursors.values())))

    def jobs_of(self, uid: int) -> list[Job]:
        """The jobs of a user."""
        return [job for job in self.jobs.values() if job.uid == uid]

    def names(self, jobs: Iterable[int]) -> str:
        """The names of some jobs, for the log."""
        return ", ".join(sorted({repr(self.jobs[job].attach.job) for job in jobs if job in self.jobs}))

    def validate(self) -> None:
        """Checks all facts against each other.

        Raises:
            Inconsistent: Two of them contradict each other.
        """
        cursors = {c: s.id for s in self.streams.values() for c in s.cursors}
        _same("the stream of each cursor", cursors, self._stream_of)
        lanes = [lane for s in self.streams.values() for lane in s.lanes]
        _same("lanes, each in one stream", len(lanes), len(set(lanes)))
        for stream in self.streams.values():
            at = f"stream {stream.id}: "
            _same(at + "lanes that are read", {c.lane for c in stream.cursors.values()}, set(stream.lanes))
            kept = stream.low, stream.wanted, stream.ready_rows()
            stream.changed()
            _same(at + "low, wanted and ready rows", kept, (stream.low, stream.wanted, stream.ready_rows()))
            if not stream.floor <= stream.low or stream.watermark > stream.head:
                raise Inconsistent(f"{at}floor {stream.floor}, low {stream.low}, head {stream.head}")
            for cursor in stream.cursors.values():
                job = self.jobs.get(cursor.job)
                if job is None:
                    raise Inconsistent(f"{at}cursor {cursor.id} is a rank of no job")
                _same(f"{at}rank {cursor.rank} of job {job.id}", job.cursors.get(cursor.rank), cursor.id)
                _same(f"{at}the user of job {job.id}", job.uid, stream.owner(cursor))
        for job in self.jobs.values():
            read = {(self._stream_of[c], self.cursor(c).lane) for c in job.cursors.values()}
            _same(f"job {job.id}: streams and lanes of its ranks", len(read), 1)


def _same(what: str, one: object, other: object) -> None:
    if one != other:
        raise Inconsistent(f"{what}: {one!r} is not {other!r}")
