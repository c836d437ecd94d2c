"""Jobs that part from others get a separate stream that continues from the same position with the same bytes.

Rows that a job still reads are never refilled. So from that position on, jobs that leave get new rings, and so do jobs
that stay on a lane which a leaving job reads.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace

from prepserver.protocol.layout import RingLayout
from prepserver.protocol.work import AddLane, DropLane, DropStream
from prepserver.schedule import actions
from prepserver.schedule.events import RingMade, RingRefused
from prepserver.schedule.lag import Parting
from prepserver.schedule.pace import apart_key
from prepserver.schedule.records import Cursor, Lane
from prepserver.schedule.story import Story
from prepserver.schedule.stream import Stream
from prepserver.schedule.strikes import Strikes
from prepserver.schedule.table import Table

NO_ROOM_S = 10.0  # how long a job may hold back another user's job because there is no memory for parting

Answer = RingMade | RingRefused | None
Steps = Generator[actions.Action, Answer, None]
"""Steps that yield actions in order, and receive the answer to each `MakeRing`."""


class Partings:
    """Moves jobs to separate streams, and knows which pipelines parted because they are slow."""

    def __init__(self, table: Table, strikes: Strikes, story: Story) -> None:
        self._table = table
        self._strikes = strikes
        self._story = story
        # (stream key, lane key) of pipelines that parted because they are slow
        self._slow: set[tuple[str, tuple[str, int]]] = set()

    def key_for(self, stream_key: str, lane_key: tuple[str, int]) -> str:
        """The key under which a job shares a stream; a separate one if its pipeline parted because it is slow."""
        keys = {stream.key for stream in self._table.streams.values()}
        self._slow = {(key, lane) for key, lane in self._slow if {key, apart_key(key, lane[1])} & keys}
        return apart_key(stream_key, lane_key[1]) if (stream_key, lane_key) in self._slow else stream_key

    def add_lane(self, stream: Stream, lane: Lane) -> AddLane:
        """The message that describes a lane to workers."""
        layout = RingLayout(lane.rows, lane.fields).to_wire()
        return self._strikes.told(AddLane(lane.id, stream.id, lane.pipeline, layout), stream.source, lane.key[0])

    def part(self, parting: Parting, now_s: float) -> Steps:
        """Moves jobs to a separate stream, if there is memory for its rings.

        Rows for absent ranks of these jobs, which never get the old ring, are made again. Before this, the caller
        removes absent ranks that would stay and need rows of the old ring (`prepserver.schedule.lag.left_out`).
        """
        stream = self._table.streams[parting.stream]
        holds = f"job {self._table.names(parting.jobs)} holds others back{parting.apart or ''}"
        leaving = [c for c in stream.cursors.values() if c.job in parting.jobs]
        left = sorted({c.lane for c in leaving})
        key = stream.key
        if parting.apart is not None:
            key = apart_key(stream.key, parting.apart.uid)
            self._slow |= {(stream.key, stream.lanes[lane].key) for lane in left}
        own: dict[int, Lane] = {}
        shared: dict[int, Lane] = {}  # for jobs that stay on a lane that others leave
        for old in left:
            stays = any(c.lane == old and c.job not in parting.jobs for c in stream.cursors.values())
            for made in (shared, own) if stays else (own,):
                lane = stream.lanes[old]
                lane_id = self._table.new_id()
                answer = yield actions.MakeRing(lane_id, lane.uid, lane.fields, lane.rows, lane.rows)
                if not isinstance(answer, RingMade):
                    yield from [actions.DropRing(lane.id) for lane in (*own.values(), *shared.values())]
                    assert answer is not None
                    if len(parting.jobs) > 1 and parting.apart is None:  # there may be room for one of them
                        yield from self.part(replace(parting, jobs=parting.jobs[:1]), now_s)
                        return
                    yield from self._cannot(parting, holds, answer.why, now_s)
                    return
                made[old] = replace(lane, id=lane_id, start=stream.watermark, oldest=None, spent=replace(lane.spent))
        for job in parting.jobs:
            self._table.jobs[job].no_room_s = None
        self._story.note(parting, stream.id)
        yield actions.Say("warning", f"{holds}: it continues in a separate stream with the same bytes")
        yield from self._part(stream, leaving, own, shared, key, now_s)

    def _part(
        self, stream: Stream, leaving: list[Cursor], own: dict[int, Lane], shared: dict[int, Lane], key: str,
        now_s: float,
    ) -> Iterable[actions.Action]:  # fmt: skip
        """Moves ranks from `stream` to a new stream under `key`.

        `own` maps each lane that they read to its new lane; `shared`, to a new lane for the jobs that stay on it.
        """
        # Chunks in flight above the watermark belong to the old stream: the new one makes their rows again.
        start = stream.watermark
        begin = min([start, *(c.first_needed for c in leaving if not c.present)])
        stream.bad.rename({lane: [new[lane].id for new in (shared, own) if lane in new] for lane in stream.lanes})
        made_id = self._table.new_id()
        spec = self._strikes.told(replace(stream.spec, stream=made_id), stream.source)
        made = Stream(
            made_id, key, stream.source, stream.n, stream.next_start, begin, spec, parted_s=now_s,
            groups=stream.groups and stream.groups.fresh(),
            lanes={lane.id: replace(lane, start=begin) for lane in own.values()}, bad=stream.bad.copy(),
        )  # fmt: skip
        yield spec
        self._table.streams[made.id] = made
        for lane in shared.values():
            stream.lanes[lane.id] = lane
            yield self.add_lane(stream, lane)
        yield from [self.add_lane(made, lane) for lane in made.lanes.values()]
        for cursor in leaving:
            del stream.cursors[cursor.id]
            self._table.put(cursor, made)
            if cursor.present:
                yield self._table.move(cursor, stream.lanes[cursor.lane], own[cursor.lane], start)
            else:
                cursor.lane = own[cursor.lane].id
        for old in sorted(own):
            if old in shared:
                staying = [c for c in stream.cursors.values() if c.lane == old]
                yield from [self._table.move(c, stream.lanes[old], shared[old], start) for c in staying]
            del stream.lanes[old]
            yield DropLane(old)
        made.changed()
        stream.changed()
        if not stream.lanes:
            del self._table.streams[stream.id]
            yield DropStream(stream.id)

    def _cannot(self, parting: Parting, holds: str, why: str, now_s: float) -> Iterable[actions.Action]:
        """Handles a lack of memory.

        Jobs of the same user have to wait. A job that holds back another user's job must attach again after
        `NO_ROOM_S`.
        """
        jobs = [self._table.jobs[job] for job in parting.jobs]
        since_s = min(now_s if job.no_room_s is None else job.no_room_s for job in jobs)
        for job in jobs:
            job.no_room_s = since_s if job.no_room_s is None else job.no_room_s
        if since_s == now_s:
            yield actions.Say("warning", f"{holds} and cannot part from them: {why}")
        elif parting.strangers and now_s - since_s >= NO_ROOM_S:
            text = f"{holds} and must attach again, because there is no memory to part from another user's job: {why}"
            yield actions.Say("warning", text)
            # Nobody refills a ring that all its jobs have left, so a stopped client finds its rows as they were.
            stream = self._table.streams[parting.stream]
            lanes = {cursor.lane for cursor in stream.cursors.values() if cursor.job in parting.jobs}
            for cursor in [cursor for cursor in stream.cursors.values() if cursor.lane in lanes]:
                if cursor.present:
                    yield actions.End(cursor.id, "internal", text[:4000])
                yield from self._table.take(cursor.id)
