"""A coordinator whose streams, lanes and ranks a test puts in by hand, to look at one decision at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prepserver.order import make_order
from prepserver.protocol.messages import Attach
from prepserver.protocol.work import AddStream
from prepserver.schedule.actions import Action, Announce
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.events import (
    ChunkFailed,
    ChunkMade,
    RankAsks,
    RankLeft,
    Released,
    Tick,
    WorkerLost,
    WorkerUp,
)
from prepserver.schedule.records import BadRow, Cursor, Job, Lane, Suspect, Took
from prepserver.schedule.stream import Stream
from prepserver.schedule.strikes import CRASH_STRIKES

SPEC = AddStream(0, {}, "", "none", 0)


class ByHand(Coordinator):
    """Events as methods. Every cursor is a job of its own, unless it says otherwise."""

    def __init__(self, chunk_rows: int = 16) -> None:
        super().__init__(lambda attach, samples: make_order(attach.shuffle, samples, 0), chunk_rows)
        self.streams = self.table.streams
        self.now_s = 0.0

    def add_stream(
        self, stream: int, key: str, source: str, n: int, next_start: Callable[[int], int], position: int
    ) -> None:
        self.streams[stream] = Stream(stream, key, source, n, next_start, position, SPEC)

    def add_lane(self, stream: int, lane: Lane) -> None:
        self.streams[stream].lanes[lane.id] = lane

    def add_cursor(self, stream: int, cursor: Cursor) -> None:
        """A place is kept for a rank."""
        attach = Attach("", {}, "none", 0, [], 1, drop_last=False, rank=0, world_size=1)
        job = self.table.jobs.setdefault(cursor.job, Job(cursor.job, (), (), attach, 0, 0, 0, 0.0))
        cursor.rank = len(job.cursors)
        job.cursors[cursor.rank] = cursor.id
        self.table.put(cursor, self.streams[stream])

    def present(self, cursor: int) -> list[Action]:
        """A rank attaches."""
        stream = self.table.stream_of(cursor)
        stream.cursors[cursor].present = True
        stream.changed()
        return [*stream.announcements(), *self._dispatch.give_out()]

    def up(self, worker: int) -> list[Action]:
        return self.handle(WorkerUp(worker), self.now_s)

    def made(self, worker: int, task: int, bad: Iterable[BadRow] = (), took: Took = Took()) -> list[Action]:  # noqa: B008
        return [*self.handle(ChunkMade(worker, task, tuple(bad), took), self.now_s), *self.later()]

    def failed(
        self, worker: int, task: int, lane: int | None = None, *, elsewhere: bool = False, reason: str = "a reason"
    ) -> list[Action]:
        return self.handle(ChunkFailed(worker, task, reason, lane, elsewhere), self.now_s)

    def lost(self, worker: int, suspect: Suspect | None = None, strikes: int = CRASH_STRIKES) -> list[Action]:
        return self.handle(WorkerLost(worker, suspect, strikes), self.now_s)

    def stuck(self, worker: int, suspect: Suspect | None = None) -> list[Action]:
        return self.handle(WorkerLost(worker, suspect, CRASH_STRIKES, stuck=True), self.now_s)

    def release(self, cursor: int, upto: int) -> list[Action]:
        return self.handle(Released(cursor, upto), self.now_s)

    def asks(self, cursor: int) -> Announce:
        (announce,) = self.handle(RankAsks(cursor), self.now_s)
        assert isinstance(announce, Announce)
        return announce

    def left(self, cursor: int) -> list[Action]:
        return self.handle(RankLeft(cursor), self.now_s)

    def tick(self, now_s: float) -> list[Action]:
        self.now_s = now_s
        return self.handle(Tick(), now_s)
