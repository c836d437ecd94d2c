"""Gives a rank a place (a stream, a lane and its ring), or refuses it with a reason.

The ranks of a job begin at one place. The first rank makes the job and reserves places for the others. The module is
long because each step that takes a place must also be undone when memory is refused half way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from prepserver.pipeline.batches import BatchLine, batch_rows
from prepserver.protocol import work
from prepserver.protocol.layout import ring_fields
from prepserver.protocol.schema import ProtocolError
from prepserver.schedule.actions import Action, Admit, MakeRing, Refuse, Say
from prepserver.schedule.asked import (
    EpochPosition,
    Orders,
    Refusal,
    first_of,
    given_place,
    line_of,
    local_ranks,
    ring_rows,
    rounds_of,
    rows_had,
    shard_of,
)
from prepserver.schedule.early import EARLY_PATIENCE
from prepserver.schedule.events import RankAttaches, RingMade
from prepserver.schedule.join import Place, Request, choose_place
from prepserver.schedule.meeting import Meetings
from prepserver.schedule.parting import Answer, Partings, Steps
from prepserver.schedule.records import Cursor, Job, Lane, rows_of_chunk
from prepserver.schedule.row_groups import RowGroups
from prepserver.schedule.story import Story
from prepserver.schedule.stream import Stream
from prepserver.schedule.strikes import Strikes
from prepserver.schedule.table import Table

ABSENT_S = 120.0
"""How long a place stays reserved. Ranks of one run start within seconds; a slow import takes longer."""

_EQUAL = {
    "shuffle": "shuffle",
    "seed": "seed",
    "batch_size": "batch_size",
    "drop_last": "drop_last",
    "batching": "order",
}
"""Fields that the ranks of a run must have in common besides source and pipeline, with the client's names for them."""

T = TypeVar("T")
Making = Generator[Action, Answer, T]
"""`Steps` with a result."""

_GREATEST_ID = 2**31 - 1  # takes as much room in a message as any
_FARTHEST = 2**60  # where a job may begin at most; messages count up to 2**62


@dataclass(frozen=True, slots=True)
class _Keys:
    """What two questions must have in common."""

    stream: str  # to share a stream
    lane: tuple[str, int]  # to share a lane as well
    run: tuple[Any, ...]  # to belong to one run, at any position
    where: tuple[Any, ...]  # to share a place as well


class Admission:
    """Admits or refuses ranks, and frees their places; a busy pool fills `chunks_in_flight` at a time."""

    def __init__(
        self, table: Table, strikes: Strikes, meetings: Meetings, partings: Partings, story: Story, orders: Orders,
        chunks_in_flight: int, chunk_rows: int,
    ) -> None:  # fmt: skip
        self._table = table
        self._strikes = strikes
        self._meetings = meetings
        self._partings = partings
        self._story = story
        self._orders = orders
        self._chunks_in_flight = chunks_in_flight
        self._chunk_rows = chunk_rows  # see `Dispatch`

    def attach(self, event: RankAttaches, now_s: float) -> Steps:
        """Admits or refuses a rank."""
        before = set(self._table.jobs)
        try:
            yield from self._attach(event, now_s)
        except Refusal as e:
            yield Refuse(event.asker, e.code, str(e), e.field)
        except Exception:  # an unforeseen error leaves no place reserved
            for job in [job for job in self._table.jobs.values() if job.id not in before]:
                yield from self.give_up(self._table.ranks(job, present=False) + self._table.ranks(job))
            raise

    def _attach(self, event: RankAttaches, now_s: float) -> Steps:
        attach = event.asked.attach
        keys = _keys(event)
        found: Job | None = None
        sibling: Job | None = None
        if attach.world_size > 1:
            for job in self._table.jobs.values():
                if job.run == keys.run and (job.where == keys.where or self._begins_alike(job, event)):
                    if self._may_enter(job, event):
                        found = job
                        break
                    sibling = job
            if found is None:
                self._check_equal(keys, event)
                if sibling is None:
                    self._check_place(keys, event)
            yield from self._leave_others(keys.run, attach.rank, found)
        if found is None:
            found = yield from self._new_job(keys, event, sibling, now_s)
        yield from self._present(found, event)

    def _present(self, job: Job, event: RankAttaches) -> Iterable[Action]:
        stream = self._table.stream_of_job(job)
        cursor = stream.cursors[job.cursors[event.asked.attach.rank]]
        self._story.note(event, stream.id)
        cursor.present = True
        stream.changed()
        yield Admit(
            event.asker, cursor.id, cursor.lane, job.epoch_start, job.position, cursor.released,
            max(0, job.position - stream.watermark), stream.cap or 0,
        )  # fmt: skip
        yield from stream.announcements()

    # -- reserved places ----------------------------------------------------------------------------

    def leave(self, cursor_id: int) -> list[Action]:
        """Removes a rank. With the last present rank of a job, the places reserved for absent ones are freed, too."""
        cursor = self._table.cursor(cursor_id)
        job = self._table.jobs[cursor.job]
        actions = self._table.take(cursor_id)
        if job.cursors and not self._table.ranks(job):
            if cursor.batches:
                ranks = ", ".join(map(str, sorted(job.cursors)))
                text = f"job {job.attach.job!r}: rank {cursor.rank} has left, and ranks {ranks} never attached here"
                advice = "A client that one rank uses alone takes sharding=Sharding(rank=0, world_size=1)"
                actions.append(Say("warning", f"{text}, so this daemon gave their samples to nobody. {advice}"))
            actions += self.give_up(self._table.ranks(job, present=False))
        return actions

    def give_up_absent(self, now_s: float) -> list[Action]:
        """Frees the places of ranks that have not attached within `ABSENT_S`, because they hold the others back."""
        actions: list[Action] = []
        for job in list(self._table.jobs.values()):
            if now_s - job.since_s > ABSENT_S and (absent := self._table.ranks(job, present=False)):
                ranks = ", ".join(str(cursor.rank) for cursor in sorted(absent, key=lambda c: c.rank))
                text = f"job {job.attach.job!r}: ranks {ranks} have not attached within {ABSENT_S:g} s"
                actions.append(Say("warning", f"{text}; their places are given up"))
                actions += self.give_up(absent)
        return actions

    def give_up(self, absent: Iterable[Cursor]) -> list[Action]:
        """Frees the places reserved for these ranks."""
        return [action for cursor in absent for action in self._table.take(cursor.id)]

    def _leave_others(self, run: tuple[Any, ...], rank: int, but: Job | None) -> list[Action]:
        """Frees the places reserved for this rank in other jobs of its run.

        After a lost connection its siblings may have come back to another epoch or stream.
        """
        jobs = [job for job in self._table.jobs.values() if job is not but and job.run == run and rank in job.cursors]
        cursors = [self._table.cursor(job.cursors[rank]) for job in jobs]
        return self.give_up(cursor for cursor in cursors if not cursor.present)

    def _may_enter(self, job: Job, event: RankAttaches) -> bool:
        """Whether the place reserved for this rank still has the rows that it needs; if so, moves its cursor there.

        Raises:
            Refusal: Another connection has the place.
        """
        attach = event.asked.attach
        if attach.rank not in job.cursors:
            return False
        stream = self._table.stream_of_job(job)
        cursor = stream.cursors[job.cursors[attach.rank]]
        if cursor.present:
            text = f"rank {attach.rank} of job {attach.job!r} is attached already. If this process holds an earlier "
            advice = (
                "client of the job, close() it or use it again; if this is another run, give it another name with job="
            )
            raise Refusal("spec", text + advice, "rank")
        start = EpochPosition(job.epoch_start, job.position)
        line = line_of(attach, event.listing.samples, start, attach.rank, attach.rounds)
        if line.peek().start < cursor.first_needed:
            return False  # its rows are gone already
        cursor.line = line
        cursor.released = cursor.announced = line.peek().start
        cursor.find_next()
        stream.changed()
        return True

    def _begins_alike(self, job: Job, event: RankAttaches) -> bool:
        """Whether a rank that is absent begins where its siblings did, in other words.

        After a restart of the daemon some come back to their position, and others come for the first time.
        """
        attach, other, cursor = event.asked.attach, job.attach, job.cursors.get(event.asked.attach.rank)
        is_present = cursor is not None and self._table.cursor(cursor).present
        if is_present or (attach.epoch, attach.first) != (other.epoch, other.first):
            return False
        if (given := given_place(attach, event.listing.samples)) is not None:
            return given == EpochPosition(job.epoch_start, job.position)
        return other.position is not None and job.position == job.epoch_start

    def _check_equal(self, keys: _Keys, event: RankAttaches) -> None:
        """Refuses a rank whose order, seed or batches differ from those of its siblings, which keep a place for it.

        Otherwise it would get its part of other batches than theirs, and they would wait for it in vain.
        """
        attach = event.asked.attach
        alike = attach.job, attach.world_size, attach.source, keys.lane
        for job in self._table.jobs.values():
            other, cursor = job.attach, job.cursors.get(attach.rank)
            if (other.job, other.world_size, other.source, job.run[0]) != alike or cursor is None:
                continue
            unequal = [name for name in _EQUAL if getattr(attach, name) != getattr(other, name)]
            if unequal and not self._table.cursor(cursor).present:
                text = ", ".join(f"{_EQUAL[name]} = {getattr(attach, name)!r}" for name in unequal)
                there = ", ".join(repr(getattr(other, name)) for name in unequal)
                raise Refusal(
                    "spec",
                    f"rank {attach.rank} of job {attach.job!r} has {text}, and rank {other.rank} has {there}: all "
                    "ranks need equal arguments. If this is another job, give it another name with job=",
                    _EQUAL[unequal[0]],
                )

    def _check_place(self, keys: _Keys, event: RankAttaches) -> None:
        """Refuses a rank that begins elsewhere in an epoch than its siblings, which keep a place for it.

        They have loaded another checkpoint, or it has loaded none. After a lost connection ranks name where they began
        the epoch that they are in, which is inside an epoch only in the first one after a checkpoint.
        """
        attach, given = event.asked.attach, given_place(event.asked.attach, event.listing.samples)
        crosses = attach.batching == "shuffle-repeat-batch"  # later epochs, too, begin inside an epoch
        for job in self._table.jobs.values():
            cursor, epoch = job.cursors.get(attach.rank), job.attach.epoch
            if job.run != keys.run or cursor is None or self._table.cursor(cursor).present:
                continue
            there = EpochPosition(job.epoch_start, job.position)
            if epoch == attach.epoch:
                unequal = _is_inside(there) if given is None else given != there
            else:
                later = there if epoch > attach.epoch else given
                unequal = later is not None and _is_inside(later) and not crosses
            if unequal:
                here = "its start" if given is None else f"position {given.position}"
                raise Refusal(
                    "spec",
                    f"rank {attach.rank} of job {attach.job!r} begins epoch {attach.epoch} at {here}, and rank "
                    f"{job.attach.rank} epoch {epoch} at position {job.position}: load the same checkpoint in all "
                    "ranks, or start all of them again. If this is another job, give it another name with job=",
                    "state_dict",
                )

    # -- new jobs -----------------------------------------------------------------------------------

    def _new_job(self, keys: _Keys, event: RankAttaches, sibling: Job | None, now_s: float) -> Making[Job]:
        """Makes a job for the first of its ranks.

        `sibling` is another job with the same keys, if this rank comes too late for its place there. Its batches must
        still be cut from the same epoch.
        """
        attach = event.asked.attach
        request = self._request(keys, event, sibling)
        where = self._place(request, event)
        if where.position > _FARTHEST:
            raise Refusal("spec", f"epoch or position {where.position} is beyond {_FARTHEST}", "epoch")
        if sibling is None:
            self._check_limits(keys.run, event, where.into or where.ahead or where.stream)
        self._lines(event, sibling, where)  # refuses a rank without batches before a ring is made
        self._described(event)  # refuses a source that no message holds
        lane: Lane | None = None
        if where.lane is None:
            where, lane = yield from self._with_ring(request, where, event)
        lines = self._lines(event, sibling, where)
        first_row = min(line.peek().start for line in lines.values())
        if where.stream is None:
            stream = self._open_stream(request.stream_key, event, first_row)
            yield from self._say_stream(stream)
        else:
            stream = self._table.streams[where.stream]
        if lane is None:
            assert where.lane is not None
            lane = stream.lanes[where.lane]
        else:
            lane.start = max(first_row, stream.head)
            stream.lanes[lane.id] = lane
            yield self._partings.add_lane(stream, lane)
        if where.into is not None:
            round_rows = attach.batch_size * attach.world_size
            self._meetings.start_early(stream, where.into, round_rows, EARLY_PATIENCE * attach.join_wait_s)
        else:
            self._meetings.share_wait(stream, EARLY_PATIENCE * attach.join_wait_s)
        job = Job(
            self._table.new_id(), keys.run, keys.where, attach, event.uid, where.epoch_start, where.position, now_s
        )
        self._table.jobs[job.id] = job
        self._keep_places(job, lines, stream, lane)
        if where.stream is None and where.into is None:
            self._meetings.wait_for_newcomer(stream)
        return job

    def _keep_places(self, job: Job, lines: dict[int, BatchLine], stream: Stream, lane: Lane) -> None:
        """Reserves a place for each rank; nothing is filled for them until the first is present."""
        attach = job.attach
        prefetch = max(2 * attach.batch_size * attach.world_size, attach.prefetch) if attach.prefetch else lane.rows
        for rank, line in lines.items():
            first = line.peek().start
            cursor = Cursor(
                self._table.new_id(), lane.id, job.id, line, prefetch, first, first, present=False, lag=attach.lag,
                rank=rank,
            )  # fmt: skip
            job.cursors[rank] = cursor.id
            self._table.put(cursor, stream)

    @staticmethod
    def _lines(event: RankAttaches, sibling: Job | None, where: Place) -> dict[int, BatchLine]:
        """The batches, from a place on, of each rank on this machine, or only of the rank that came late."""
        attach, samples = event.asked.attach, event.listing.samples
        ranks = [attach.rank] if sibling is not None else local_ranks(attach)
        start = EpochPosition(where.epoch_start, where.position)
        return {rank: line_of(attach, samples, start, rank, rounds_of(attach, rank)) for rank in ranks}

    @staticmethod
    def _say_stream(stream: Stream) -> Iterable[Action]:
        yield stream.spec
        if "/" in stream.spec.places:
            text = "workers may read all files, because its dataset lies in / itself, or in too many places to name"
            yield Say("warning", f"stream {stream.id}: {text}")

    def _request(self, keys: _Keys, event: RankAttaches, sibling: Job | None) -> Request:
        attach, samples = event.asked.attach, event.listing.samples
        given = (
            given_place(attach, samples) if sibling is None else EpochPosition(sibling.epoch_start, sibling.position)
        )
        first, n = first_of(attach, self._orders, samples), shard_of(attach).positions(samples)
        start = (first or 0) + attach.epoch * n
        where = given or EpochPosition(start, start)
        fields, round_rows = ring_fields(event.asked.pipeline.fields), attach.batch_size * attach.world_size
        in_flight = self._chunks_in_flight * min(self._chunk_rows, rows_of_chunk(fields))
        wanted, needed = ring_rows(fields, round_rows, attach.prefetch, in_flight)
        return Request(
            self._partings.key_for(keys.stream, keys.lane), keys.lane, n, needed, where.epoch_start, where.position,
            attach.join_wait_s, given is None and first is None and attach.shuffle == "cyclic",
            rows_had(attach, samples), rows_wanted=wanted,
        )  # fmt: skip

    def _place(self, request: Request, event: RankAttaches) -> Place:
        meetings, streams = self._meetings, self._table.streams.values()
        return choose_place(
            request, streams, event.rows_per_s, meetings.waits_for, lambda each: meetings.would_wait(each, event.uid)
        )

    def _with_ring(self, request: Request, where: Place, event: RankAttaches) -> Making[tuple[Place, Lane | None]]:
        """The place, and a new lane with a ring; None for the lane if the place has a lane already.

        Without memory for an early start, the job waits for its place on the shared stream.

        Raises:
            Refusal: There is no memory for a ring at all.
        """
        lane_id = self._table.new_id()
        wanted, needed = max(request.rows_wanted, where.rows), max(request.rows_needed, where.rows)
        fields = ring_fields(event.asked.pipeline.fields)
        answer: Answer = yield MakeRing(lane_id, event.uid, fields, wanted, needed)
        if isinstance(answer, RingMade):
            pipeline = event.asked.pipeline.to_wire()
            return where, Lane(lane_id, request.lane_key, answer.rows, 0, pipeline=pipeline, fields=fields)
        assert answer is not None
        shared = where.into or where.ahead
        if shared is None or answer.code != "memory":
            raise Refusal(answer.code, answer.why)
        yield Say("info", f"no early start, the job waits for stream {shared}: {answer.why}")
        where = self._place(replace(request, early=False), event)
        if where.lane is not None:
            return where, None
        return (yield from self._with_ring(replace(request, early=False), where, event))

    def _described(self, event: RankAttaches) -> work.AddStream:
        """The message that describes the stream of a job to workers.

        Raises:
            Refusal: It is too large.
        """
        attach, listing = event.asked.attach, event.listing
        spec = work.AddStream(
            _GREATEST_ID, event.asked.source, listing.path, attach.shuffle, attach.seed, [], listing.roots,
            attach.num_shards, attach.shard_index, batch_rows(attach.batching, attach.batch_size), listing.places,
            listing.key,
        )  # fmt: skip
        try:
            return self._strikes.told(spec, listing.digest)
        except ProtocolError as e:
            raise Refusal("spec", f"the source and its folders are too large: use fewer or shorter paths. {e}") from e

    def _open_stream(self, key: str, event: RankAttaches, position: int) -> Stream:
        attach, listing = event.asked.attach, event.listing
        order = self._orders(attach, listing.samples)
        stream_id = self._table.new_id()
        spec = replace(self._described(event), stream=stream_id)
        along = attach.shuffle == "none" or bool(spec.batch_rows)
        groups = (
            RowGroups(order.indices, listing.row_groups, listing.kept_rows) if along and listing.row_groups else None
        )
        stream = Stream(stream_id, key, listing.digest, order.n, order.next_start, position, spec, groups=groups)
        self._table.streams[stream_id] = stream
        return stream

    def _check_limits(self, run: tuple[Any, ...], event: RankAttaches, stream: int | None) -> None:
        """Checks that a user may start one more job, which reads `stream` now or after its early stream has joined."""
        uid, limits, rank = event.uid, event.limits, event.asked.attach.rank
        mine = [job for job in self._table.jobs.values() if job.uid == uid]
        # Ranks that came late, or came back to another place, form another job here, but belong to the same run.
        ranks = Counter((job.run, cursor.rank) for job in mine for cursor in self._table.ranks(job))
        runs: dict[tuple[Any, ...], int] = {}
        for (each, _), times in ranks.items():
            runs[each] = max(times, runs.get(each, 0))
        waits_for = self._meetings.waits_for
        read = {waits_for.get(s, s) for s in (self._table.stream_of_job(job).id for job in mine)}
        if ranks[run, rank] == runs.get(run, 0):
            _check("job", sum(runs.values()), limits.jobs_per_uid, "jobs_per_uid", uid)
        if stream not in read:
            _check("stream", len(read), limits.streams_per_uid, "streams_per_uid", uid)


def _keys(event: RankAttaches) -> _Keys:
    attach, listing = event.asked.attach, event.listing
    # Roots are part of the key, because users may be allowed to read different folders.
    shard = f"{attach.shard_index}/{attach.num_shards}"
    order = f"{attach.shuffle} {batch_rows(attach.batching, attach.batch_size)} {attach.seed}"
    read = f"{listing.digest} {order} {shard} {listing.roots} {listing.places}"
    stream = hashlib.sha256(read.encode()).hexdigest()
    lane = event.asked.pipeline.digest, event.uid
    run = lane, stream, attach.job, attach.world_size, attach.batch_size, attach.drop_last, attach.batching
    return _Keys(stream, lane, run, (attach.epoch, attach.position, attach.epoch_start, attach.first))


def _is_inside(place: EpochPosition) -> bool:
    return place.position != place.epoch_start


def _check(what: str, used: int, limit: int, knob: str, uid: int) -> None:
    if limit and used + 1 > limit:
        raise Refusal(
            "permission",
            f"uid {uid} has {used} {what}{'s' * (used != 1)}, and {knob} = {limit} allows no more: end another "
            f"job, or have {knob} raised under [limits] in the daemon's --config",
        )
