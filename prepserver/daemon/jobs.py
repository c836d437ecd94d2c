"""The jobs: who is attached, on which stream and lane, and with which ring.

Turns a client's question into a place on a stream (the scheduler's decision), makes what is missing there
(stream, lane, ring), and undoes it when the job goes.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from prepserver import __version__
from prepserver.daemon.access import Access, Denied, Holding
from prepserver.daemon.attach import Peer
from prepserver.daemon.rings import Rings, ring_rows
from prepserver.memory.errors import MemoryShort
from prepserver.order import Order, check_start, make_order
from prepserver.pipeline.batches import BatchLine, batch_rows
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.shard import Shard
from prepserver.pipeline.sources import place_of, source_from_wire
from prepserver.pipeline.spec import Codes
from prepserver.protocol import work
from prepserver.protocol.layout import Field, ring_fields
from prepserver.protocol.messages import PROTOCOL, Attach, Moved, Refused, Welcome, lag_error
from prepserver.schedule.actions import Action, Joined, Move
from prepserver.schedule.early import PATIENCE
from prepserver.schedule.join import Place, Request, place
from prepserver.schedule.lag import Apart, LagWatch, Parting, left_out, still_holds
from prepserver.schedule.pace import apart_key, slow_partings
from prepserver.schedule.scheduler import TASKS_PER_WORKER, Scheduler
from prepserver.schedule.stream import Cursor, Lane, Stream

log = logging.getLogger(__name__)

_ABSENT_S = 120.0  # ranks of one run start within seconds of each other; a slow import takes longer
_WORLD_SIZE = 3  # its place in a group's key
_NO_ROOM_S = 10.0  # how long a job may hold back another user's for want of the memory to part from it
_RUN_FIELDS = 7  # of a group's key: what names the run, before where it stands
_LOCAL_RANKS_MOST = 1024  # each is a cursor that every decision looks at
_FARTHEST = 2**60  # where a job may begin; messages count up to 2**62
_SIBLINGS_BEHIND = 2  # data-parallel ranks wait for each other in every step; one more for safety
_MOST_QUARANTINED = 4096  # what one message to a worker holds


class Refusal(Exception):
    """Why a job cannot be admitted; becomes the message that its client gets."""

    def __init__(self, code: str, text: str, field_path: str | None = None) -> None:
        super().__init__(text)
        self.message = Refused(code, text[:4000], field_path[:200] if field_path else None)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that was checked as far as it can be before its source is listed."""

    attach: Attach
    source: dict[str, Any]
    pipeline: Pipeline


@dataclass(slots=True)
class Attachment:
    """One rank of a job, attached.

    Attributes:
        cursor: The daemon's number.
        peer: Its lease.
        attach: What it asked for.
        stream: Which it reads.
        lane: Whose rows it reads.
        group: The job that it is a rank of.
        epoch_start: Where the epoch `attach.epoch` begins, in the line of its shard.
        connected: Whether it has said Hello on its control line.
        is_owed: Whether an announcement found no room on its connection: then everything is to be said again.
        moves: How often it was moved to another ring.
        since_s: When it attached, monotonic.
    """

    cursor: int
    peer: Peer
    attach: Attach
    stream: int
    lane: int
    group: int
    epoch_start: int
    connected: bool = False
    is_owed: bool = False
    moves: int = 0
    since_s: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _StreamSetup:
    """What a new worker must be told about a stream."""

    add: work.AddStream
    lanes: dict[int, work.AddLane] = field(default_factory=dict)


@dataclass(slots=True)
class _Group:
    """The ranks of one job: they start at one place, and a rank that is not there yet keeps it."""

    key: tuple[Any, ...]
    stream: int
    lane: int
    place: Place
    cursors: dict[int, int]  # rank -> cursor
    attached: set[int] = field(default_factory=set)
    since_s: float = field(default_factory=time.monotonic)


class Jobs:
    """See the module.

    Args:
        scheduler: Decides.
        rings: Memory.
        broadcast: Tells all workers, with descriptors.
        workers: Size of the pool.
        rows_per_s: The pool's measured rate while it works.
        access: The rules.
        do: Carries out what the scheduler wants. Whatever it decided must be done before anything else happens: a
            job that it has joined with another stream must not be told of rows there while it reads the old ring.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rings: Rings,
        broadcast: Callable[[Any, Sequence[int]], None],
        workers: int,
        rows_per_s: Callable[[], float],
        access: Access,
        do: Callable[[Iterable[Action]], None],
    ) -> None:
        self._scheduler = scheduler
        self._rings = rings
        self._broadcast = broadcast
        self._workers = workers
        self._rows_per_s = rows_per_s
        self.access = access
        self._do = do
        self._ids = itertools.count(1)
        self._setups: dict[int, _StreamSetup] = {}
        self._groups: dict[int, _Group] = {}
        self._lag = LagWatch(scheduler.chunk_rows)
        self._slow: set[tuple[str, tuple[str, int]]] = set()  # (key of streams, of lanes) that are kept apart there
        self._no_room_s: dict[int, float] = {}  # groups that cannot part for want of memory, since when
        self.attachments: dict[int, Attachment] = {}

    def setup_messages(self) -> Iterable[tuple[Any, Sequence[int]]]:
        """All that a new worker must know."""
        for setup in self._setups.values():
            stream = self._scheduler.streams[setup.add.stream]
            yield replace(setup.add, quarantined=self._bad(stream.source)), ()
            for lane, add in setup.lanes.items():
                yield self._with_bad(add, stream), (self._rings.held[lane].fd,)

    def admit(self, peer: Peer, asked: Asked, listing: work.Indexed) -> tuple[Welcome, int, list[Action]]:
        """Gives a rank its place.

        Returns:
            The answer, the ring's descriptor (borrowed) to send with it, and what is to be done once it is sent.

        Raises:
            Refusal: It cannot be.
        """
        attach = asked.attach
        group_id, group = self._group_of(peer, asked, listing)
        if attach.rank in group.attached:
            raise Refusal(
                "spec",
                f"rank {attach.rank} of job {attach.job!r} is attached already; if this is another run, give it "
                "another name with job=",
                "rank",
            )
        cursor = group.cursors[attach.rank]
        group.attached.add(attach.rank)
        start = group.place.epoch_start
        attachment = Attachment(cursor, peer, attach, group.stream, group.lane, group_id, start)
        self.attachments[cursor] = attachment
        peer.cursor = cursor
        stream = self._scheduler.streams[group.stream]
        ring = self._rings.held[group.lane]
        welcome = Welcome(
            protocol=PROTOCOL,
            version=__version__,
            job_id=cursor,
            samples=listing.samples,
            num_classes=listing.num_classes,
            source_digest=listing.digest,
            content_digest=listing.content_digest,
            epoch_start=group.place.epoch_start,
            position=group.place.position,
            ahead=max(0, group.place.position - stream.watermark),
            alone_upto=stream.cap or 0,
            layout=ring.layout.to_wire(),
            code=asked.pipeline.code,
        )
        return welcome, ring.fd, self._scheduler.cursor_present(cursor)

    def leave(self, cursor: int) -> list[Action]:
        """A rank is gone."""
        attachment = self.attachments.pop(cursor, None)
        if attachment is None:
            return []
        group = self._groups[attachment.group]
        rank = attachment.attach.rank
        group.attached.discard(rank)
        del group.cursors[rank]
        actions = self._scheduler.remove_cursor(cursor)
        if not group.attached:
            # the ranks that never came will not come to this group any more
            for absent in group.cursors.values():
                actions += self._scheduler.remove_cursor(absent)
            del self._groups[attachment.group]
            self._no_room_s.pop(attachment.group, None)
        return actions

    def tick(self, now_s: float) -> None:
        """Parts jobs that hold others back, joins those that meet again, makes late chunks a second time."""
        # Each step is done before the next one is computed: it may join streams, and rename lanes with that.
        self._give_up_absent(now_s)
        scheduler = self._scheduler
        for parting in self._lag.partings(scheduler.streams.values(), scheduler.workers_idle, now_s):
            if still_holds(parting, scheduler.streams, scheduler.chunk_rows):
                # Late, they get a stream of their own.
                self._give_up(left_out(parting, scheduler.streams[parting.stream]))
            if still_holds(parting, scheduler.streams, scheduler.chunk_rows):
                self._do(self._part(parting, now_s))
        for stream in list(scheduler.streams.values()):
            for parting in slow_partings(stream):
                self._do(self._part(parting, now_s))
        while meetings := self._lag.meetings([s for s in scheduler.streams.values() if s.cap is None], now_s):
            self._do(scheduler.meet(meetings[0]))
        self._do(scheduler.lose_patience(now_s))
        self._do(scheduler.hedge(now_s))

    def moved(self, move: Move) -> None:
        """The scheduler has moved a rank to another ring: its client is told, and gets the descriptor."""
        attachment = self.attachments.get(move.cursor)
        if attachment is None:
            return
        ring = self._rings.held[move.lane]
        attachment.lane = move.lane
        attachment.stream = self._scheduler.stream_of(move.cursor).id
        attachment.moves += 1
        try:
            attachment.peer.send_or_keep(Moved(move.start, ring.layout.to_wire()), ring.fd)
        except OSError as e:  # it can come back to its place, and not go on without its rows
            attach = attachment.attach
            log.warning(
                "job %r rank %d cannot be told of its new ring and must attach anew: %s", attach.job, attach.rank, e
            )
            attachment.peer.hang_up()

    def joined(self, joined: Joined) -> None:
        """The jobs of a stream are in another one: so are the lanes that went along, which workers know by number."""
        log.info("the jobs of stream %d go on in stream %d: they have met", joined.stream, joined.into)
        for group in self._groups.values():
            if group.stream == joined.stream:
                group.stream, group.lane = joined.into, joined.lanes[group.lane]
        for attachment in self.attachments.values():
            if attachment.stream == joined.stream:
                attachment.stream = joined.into
        for lane in [old for old, new in joined.lanes.items() if old == new]:
            add = self._setups[joined.stream].lanes.pop(lane)
            self._setups[joined.into].lanes[lane] = replace(add, stream=joined.into)

    def reads_everywhere(self, stream: int) -> bool:
        """Whether the sandbox of workers that read a stream lets them open every file."""
        return "/" in self._setups[stream].add.places

    def drop_lane(self, lane: int) -> None:
        """The scheduler has dropped a lane."""
        self._rings.drop(lane)
        for setup in self._setups.values():
            setup.lanes.pop(lane, None)
        self._broadcast(work.DropLane(lane), ())

    def drop_stream(self, stream: int) -> None:
        """The scheduler has dropped a stream."""
        del self._setups[stream]
        keys = {each.key for each in self._scheduler.streams.values()}
        self._slow = {(key, lane) for key, lane in self._slow if {key, apart_key(key, lane[1])} & keys}
        self._broadcast(work.DropStream(stream), ())

    def quarantine(self, source: str, index: int, pipeline: str) -> None:
        """A sample killed workers again and again, in one pipeline or for all (empty): all workers are told."""
        for stream in self._scheduler.streams.values():
            if stream.source == source and not pipeline:
                self._broadcast(work.Quarantine(stream.id, [index]), ())
            elif stream.source == source:
                for lane in [lane.id for lane in stream.lanes.values() if lane.key[0] == pipeline]:
                    self._broadcast(work.Quarantine(stream.id, [index], lane), ())

    def _bad(self, source: str, pipeline: str = "") -> list[int]:
        return sorted(self._scheduler.quarantined.get((source, pipeline), ()))[:_MOST_QUARANTINED]

    def _with_bad(self, add: work.AddLane, stream: Stream) -> work.AddLane:
        return replace(add, quarantined=self._bad(stream.source, stream.lanes[add.lane].key[0]))

    def _part(self, parting: Parting, now_s: float) -> list[Action]:
        stream = self._scheduler.streams[parting.stream]
        members = [a for a in self.attachments.values() if a.group in parting.groups]
        job = ", ".join(sorted({repr(a.attach.job) for a in members}))
        leaving = {c.lane for c in stream.cursors.values() if c.group in parting.groups}
        key = None
        if parting.apart is not None:
            key = apart_key(stream.key, parting.apart.uid)
            self._slow |= {(stream.key, stream.lanes[lane].key) for lane in leaving}
        try:
            own_lanes, shared = self._new_rings(parting, stream, leaving)
        except MemoryShort as e:
            self._cannot_part(parting, job, e, now_s)
            return []
        self._no_room_s = {k: since_s for k, since_s in self._no_room_s.items() if k not in parting.groups}
        setup = self._setups[parting.stream]
        for old, lane in shared.items():
            self._announce_lane(parting.stream, lane, setup.lanes[old].pipeline, stream.source)
        own_id = next(self._ids)
        add = replace(setup.add, stream=own_id, quarantined=self._bad(stream.source))
        self._setups[own_id] = _StreamSetup(add)
        self._broadcast(add, ())
        for old, lane in own_lanes.items():
            self._announce_lane(own_id, lane, setup.lanes[old].pipeline, stream.source)
        self._lag.parted(own_id, now_s)
        for attachment in members:
            attachment.stream = own_id
        for group in map(self._groups.__getitem__, parting.groups):
            group.stream, group.lane = own_id, own_lanes[group.lane].id
        for other in self._groups.values():
            if other.stream == parting.stream and other.lane in shared:
                other.lane = shared[other.lane].id
        log.warning(
            "job %s holds others back%s: it goes on in a stream of its own, the same bytes", job, _why(parting.apart)
        )
        return self._scheduler.part(parting.stream, parting.groups, (own_id, own_lanes), shared, key)

    def _cannot_part(self, parting: Parting, job: str, why: MemoryShort, now_s: float) -> None:
        """Jobs of its own user wait for it; those of others do not: it may attach anew, as after a lost connection."""
        since_s = min(self._no_room_s.setdefault(group, now_s) for group in parting.groups)
        if since_s == now_s:
            log.warning("job %s holds others back%s and cannot part from them: %s", job, _why(parting.apart), why)
        elif parting.strangers and now_s - since_s >= _NO_ROOM_S:
            log.warning("job %s holds back another user's job and must attach anew, for want of memory: %s", job, why)
            for attachment in self.attachments.values():
                if attachment.group in parting.groups:
                    attachment.peer.hang_up()

    def _new_rings(
        self, parting: Parting, stream: Stream, leaving: set[int]
    ) -> tuple[dict[int, Lane], dict[int, Lane]]:
        """For each lane that the job reads: a new one of its own, and a new one for those that stay.

        Raises:
            MemoryShort: They do not fit; none was made.
        """
        own: dict[int, Lane] = {}
        shared: dict[int, Lane] = {}
        made: list[int] = []
        try:
            for lane_id in sorted(leaving):
                lane = stream.lanes[lane_id]
                stay = any(c.lane == lane_id and c.group not in parting.groups for c in stream.cursors.values())
                if stay:
                    shared[lane_id] = self._again(lane, stream.watermark, made)
                own[lane_id] = self._again(lane, stream.watermark, made)
        except MemoryShort:
            for lane_id in made:
                self._rings.drop(lane_id)
            raise
        return own, shared

    def _again(self, lane: Lane, start: int, made: list[int]) -> Lane:
        """A lane of the same rows in a new ring."""
        layout = self._rings.held[lane.id].layout
        lane_id = next(self._ids)
        self._rings.create(lane_id, lane.key[1], layout.fields, (layout.rows, layout.rows))
        made.append(lane_id)
        return Lane(lane_id, lane.key, layout.rows, start, spent=replace(lane.spent))

    def _announce_lane(self, stream_id: int, lane: Lane, pipeline: list[Any], source: str) -> None:
        ring = self._rings.held[lane.id]
        add = work.AddLane(lane.id, stream_id, pipeline, ring.layout.to_wire(), self._bad(source, lane.key[0]))
        self._setups[stream_id].lanes[lane.id] = add
        self._broadcast(add, (ring.fd,))

    def _give_up_absent(self, now_s: float) -> None:
        """Ranks that never came hold the others back for so long and no longer."""
        for group in self._groups.values():
            absent = group.cursors.keys() - group.attached
            if absent and now_s - group.since_s > _ABSENT_S:
                log.warning(
                    "job %r: ranks %s have not attached within %g s; their places are given up",
                    group.key[2], ", ".join(map(str, sorted(absent))), _ABSENT_S,
                )  # fmt: skip
                for rank in absent:
                    self._do(self._scheduler.remove_cursor(group.cursors.pop(rank)))

    def _give_up(self, absent: Iterable[Cursor]) -> None:
        """The places of these ranks are kept no longer."""
        for cursor in absent:
            cursors = self._groups[cursor.group].cursors
            del cursors[next(rank for rank, each in cursors.items() if each == cursor.id)]
            self._do(self._scheduler.remove_cursor(cursor.id))

    def ops_of(self, pipeline: str) -> str:
        """The ops of the pipeline with this digest, for people."""
        for stream in self._scheduler.streams.values():
            for lane in stream.lanes.values():
                if lane.key[0] == pipeline:
                    return ", ".join(op.get("name", op["op"]) for op in self._setups[stream.id].lanes[lane.id].pipeline)
        return ""

    def dataset_of(self, source: str) -> str:
        """Where the source with this digest is, for people."""
        for stream_id, setup in self._setups.items():
            if self._scheduler.streams[stream_id].source == source:
                return place_of(setup.add.source)
        return ""

    # -- inside -------------------------------------------------------------------------------------

    def _group_of(self, peer: Peer, asked: Asked, listing: work.Indexed) -> tuple[int, _Group]:
        """The group of this rank's job, made if it is the first of its ranks."""
        attach = asked.attach
        # The roots are part of it: a stream may hold what one user may read and another may not.
        shard = f"{attach.shard_index}/{attach.num_shards}"
        order = f"{attach.shuffle} {batch_rows(attach.batching, attach.batch_size)} {attach.seed}"
        stream_id = f"{listing.digest} {order} {shard} {listing.roots} {listing.places}"
        stream_key = hashlib.sha256(stream_id.encode()).hexdigest()
        lane_key = (asked.pipeline.digest, peer.uid)
        group_key = (
            lane_key, stream_key, attach.job, attach.world_size, attach.batch_size, attach.drop_last,
            attach.batching, attach.epoch, attach.position, attach.epoch_start, attach.first,
        )  # fmt: skip
        siblings = None
        if attach.world_size > 1:
            for group_id, group in self._groups.items():
                if group.key == group_key and self._may_enter(group, attach, listing.samples):
                    self._leave_others(group_key, attach.rank, group_id)
                    return group_id, group
                siblings = group.place if group.key == group_key else siblings
            self._leave_others(group_key, attach.rank, None)
        if (stream_key, lane_key) in self._slow:
            stream_key = apart_key(stream_key, peer.uid)
        return self._new_group(group_key, stream_key, lane_key, asked, listing, siblings)

    def _leave_others(self, key: tuple[Any, ...], rank: int, but: int | None) -> None:
        """This rank of a run is here now: the places that are kept for it elsewhere are given up.

        After a lost connection its siblings may have come back to another epoch or another stream.
        """
        for group_id, group in self._groups.items():
            same_run = group.key[:_RUN_FIELDS] == key[:_RUN_FIELDS]
            if group_id != but and same_run and rank in group.cursors and rank not in group.attached:
                self._do(self._scheduler.remove_cursor(group.cursors.pop(rank)))

    def _may_enter(self, group: _Group, attach: Attach, samples: int) -> bool:
        """Whether the place that is kept for this rank is where it wants to go on."""
        if attach.rank not in group.cursors or attach.rank in group.attached:
            return attach.rank in group.attached  # then it is refused, by name
        cursor = self._scheduler.streams[group.stream].cursors[group.cursors[attach.rank]]
        line = self._line(attach, samples, group.place, attach.rank, attach.rounds)
        if line.peek().start < cursor.need:
            return False  # its rows are gone already
        self._scheduler.move_cursor(cursor.id, line)
        return True

    def _new_group(
        self,
        group_key: tuple[Any, ...],
        stream_key: str,
        lane_key: tuple[str, int],
        asked: Asked,
        listing: work.Indexed,
        siblings: Place | None,
    ) -> tuple[int, _Group]:
        """A new group.

        Args:
            group_key: What its ranks have in common.
            stream_key: See `Stream.key`.
            lane_key: See `Lane.key`.
            asked: By its first rank.
            listing: Of the source.
            siblings: Where other ranks of the same job began, if this one comes too late to join them: its
                batches must still be cut from the same epoch.
        """
        attach = asked.attach
        round_rows = attach.batch_size * attach.world_size
        in_work = self._workers * TASKS_PER_WORKER * self._scheduler.chunk_rows
        fields = ring_fields(asked.pipeline.fields)
        rows = ring_rows(fields, round_rows, attach.prefetch, in_work)
        given = siblings or _given_place(attach, listing.samples)
        request = Request(
            stream_key, lane_key, attach.shuffle, _shard(attach).positions(listing.samples), rows[1], attach.epoch,
            given.position if given else None, given.epoch_start if given else None,
            attach.join_wait_s, self._rows_behind(attach, listing.samples),
            first=_first_of(attach, listing.samples),
        )  # fmt: skip
        where = self._place(request)
        if where.position > _FARTHEST:
            raise Refusal("spec", f"epoch or position {where.position} is beyond {_FARTHEST}", "epoch")
        ranks = range(attach.rank, attach.rank + 1) if siblings else _local_ranks(attach)
        lines = {rank: self._line(attach, listing.samples, where, rank, _rounds_of(attach, rank)) for rank in ranks}
        first_row = min(line.peek().start for line in lines.values())
        uid, holding = lane_key[1], self._holding(lane_key[1])
        if siblings is None:
            self._check_job(uid, holding, where.stream if where.into is None else where.into)
        where, lane_id = self._with_ring(
            request, where, fields, rows,
            lambda nbytes: self.access.check_ring(uid, holding, nbytes),
        )  # fmt: skip
        stream_id = where.stream if where.stream is not None else next(self._ids)
        if where.stream is None:
            self._open_stream(stream_id, stream_key, asked, listing, first_row)
        if where.lane is None:
            start = max(first_row, self._scheduler.streams[stream_id].head)
            self._open_lane(stream_id, lane_id, lane_key, asked.pipeline, start)
        if where.into is not None:
            self._scheduler.start_early(stream_id, where.into, round_rows, PATIENCE * attach.join_wait_s)
        else:
            self._scheduler.share_wait(stream_id, PATIENCE * attach.join_wait_s)
        ring_size = self._rings.held[lane_id].layout.rows
        group_id = next(self._ids)
        group = _Group(group_key, stream_id, lane_id, where, {})
        self._groups[group_id] = group
        prefetch = max(2 * round_rows, attach.prefetch) if attach.prefetch else ring_size
        for rank, line in lines.items():
            cursor_id = next(self._ids)
            group.cursors[rank] = cursor_id
            first = line.peek().start
            # Nothing is filled for it before `cursor_present` of the first rank.
            cursor = Cursor(cursor_id, lane_id, group_id, line, prefetch, first, first, present=False, lag=attach.lag)
            self._scheduler.add_cursor(stream_id, cursor)
        return group_id, group

    def _place(self, request: Request) -> Place:
        return place(request, self._scheduler.streams.values(), self._rows_per_s(), self._scheduler.waits_for)

    def _with_ring(
        self,
        request: Request,
        where: Place,
        fields: tuple[Field, ...],
        rows: tuple[int, int],
        allow: Callable[[int], None],
    ) -> tuple[Place, int]:
        """The place, and its lane with a ring.

        Where there is no memory to begin early on a stream of its own, the job waits for its place on the shared one.

        Raises:
            Refusal: There is no memory at all.
        """
        if where.lane is not None:
            return where, where.lane
        lane_id = next(self._ids)
        wanted, needed = max(rows[0], where.rows), max(rows[1], where.rows)
        try:
            self._rings.create(lane_id, request.lane_key[1], fields, (wanted, needed), allow)
        except MemoryShort as e:
            if where.into is None:
                raise Refusal("memory", str(e)) from e
            log.info("no early start, the job waits for stream %d: %s", where.into, e)
            return self._with_ring(request, self._place(replace(request, early=False)), fields, rows, allow)
        return where, lane_id

    def _holding(self, uid: int) -> Holding:
        groups = {k: group for k, group in self._groups.items() if group.key[0][1] == uid}
        return Holding(
            # Ranks that came late are in a group of their own and the same job. A job of one rank has no late ranks:
            # two with equal arguments are two jobs.
            jobs=len({(group.key, 0 if group.key[_WORLD_SIZE] > 1 else k) for k, group in groups.items()}),
            streams=len({self._shared_stream(group.stream) for group in groups.values()}),
            ring_bytes=self._rings.bytes_of(uid),
        )

    def _shared_stream(self, stream: int) -> int:
        """The stream that a job reads, or will read when its own has joined it."""
        return self._scheduler.waits_for.get(stream, stream)

    def _check_job(self, uid: int, holding: Holding, stream: int | None) -> None:
        mine = [group.stream for group in self._groups.values() if group.key[0][1] == uid]
        known = any(self._shared_stream(each) == stream for each in mine)
        try:
            self.access.check_job(uid, holding, new_stream=not known)
        except Denied as e:
            raise Refusal("permission", str(e)) from e

    def _rows_behind(self, attach: Attach, samples: int) -> int:
        """Rows between the position that a rank comes back to and the first that it or a sibling still needs."""
        where = _given_place(attach, samples)
        if where is None or not attach.rounds:
            return 0
        lines = (self._line(attach, samples, where, rank, _rounds_of(attach, rank)) for rank in _local_ranks(attach))
        return min(line.peek().start for line in lines) - where.position

    def _line(self, attach: Attach, samples: int, where: Place, rank: int, rounds: int) -> BatchLine:
        shape = (attach.batch_size, attach.drop_last, rank, attach.world_size)
        try:
            return BatchLine(
                samples, where.epoch_start, where.position, *shape, rounds, _shard(attach), attach.batching
            )
        except ValueError as e:
            raise Refusal("spec", str(e), "batch_size") from e

    def _open_stream(self, stream_id: int, key: str, asked: Asked, listing: work.Indexed, position: int) -> None:
        attach = asked.attach
        whole = batch_rows(attach.batching, attach.batch_size)
        order = _order_of(attach, listing.samples)
        self._scheduler.add_stream(stream_id, key, listing.digest, order.n, order.next_start, position)
        add = work.AddStream(
            stream_id, asked.source, listing.path, attach.shuffle, attach.seed, self._bad(listing.digest),
            listing.roots, attach.num_shards, attach.shard_index, whole, listing.places,
        )  # fmt: skip
        self._setups[stream_id] = _StreamSetup(add)
        if self.reads_everywhere(stream_id):
            log.warning("stream %d: workers may read all files, because its dataset lies in so many places", stream_id)
        self._broadcast(add, ())

    def _open_lane(self, stream_id: int, lane_id: int, key: tuple[str, int], pipeline: Pipeline, position: int) -> None:
        ring = self._rings.held[lane_id]
        self._scheduler.add_lane(stream_id, Lane(lane_id, key, ring.layout.rows, position))
        stream = self._scheduler.streams[stream_id]
        self._announce_lane(stream_id, stream.lanes[lane_id], pipeline.to_wire(), stream.source)


def check(attach: Attach, codes: Codes = MappingProxyType({})) -> Asked:
    """Checks a question as far as it can be before the source is listed.

    Args:
        attach: The question.
        codes: The plug-ins that it may name. What becomes of it holds the digests of their code.

    Raises:
        Refusal: Versions, spec or numbers that cannot be.
    """
    lowest, highest = attach.protocol
    if not lowest <= PROTOCOL <= highest:
        raise Refusal(
            "protocol",
            f"the client (prepserver {attach.version}) speaks protocol {lowest} to {highest}, this daemon "
            f"(prepserver {__version__}) speaks {PROTOCOL}: install the same release on both sides",
        )
    _check_name(attach.job)
    if not 0 <= attach.rank < attach.world_size:
        raise Refusal("spec", f"rank = {attach.rank} is not in [0, world_size = {attach.world_size})", "rank")
    if attach.rank not in _local_ranks(attach) or _local_ranks(attach).stop > attach.world_size:
        raise Refusal("spec", f"local_ranks = {attach.local_ranks} does not hold rank {attach.rank}", "rank")
    if attach.shard_index >= attach.num_shards:
        text = f"shard_index = {attach.shard_index} is not in [0, num_shards = {attach.num_shards})"
        raise Refusal("spec", text, "shard_index")
    if attach.batching == "batch-shuffle-repeat" and attach.shuffle != "full":
        raise Refusal("spec", f"batches are shuffled by a full permutation, not by {attach.shuffle!r}", "shuffle")
    if (wrong := lag_error(attach.lag)) is not None:
        raise Refusal("spec", wrong, "lag")
    if len(_local_ranks(attach)) > _LOCAL_RANKS_MOST:
        raise Refusal(
            "spec",
            f"{len(_local_ranks(attach))} ranks on one machine, at most {_LOCAL_RANKS_MOST}: where the others run "
            "elsewhere, the launcher's LOCAL_RANK and LOCAL_WORLD_SIZE say so",
            "world_size",
        )
    if (attach.position is None) != (attach.epoch_start is None):
        raise Refusal("spec", "position and epoch_start come together", "position")
    try:
        source = source_from_wire(attach.source).with_code(codes)
        pipeline = Pipeline.from_wire(attach.pipeline, source.columns).with_code(codes)
    except SpecError as e:
        raise Refusal("spec", str(e), e.field) from e
    return Asked(attach, source.to_wire(), pipeline)


def _check_name(job: str) -> None:
    if not job.isprintable():
        raise Refusal("spec", f"job = {job!r} holds characters that cannot be shown; use others", "job")


def _shard(attach: Attach) -> Shard:
    return Shard(attach.num_shards, attach.shard_index)


def _first_of(attach: Attach, samples: int) -> int | None:
    """Where epoch 0 of a fresh job begins, None for anywhere.

    Raises:
        Refusal: It cannot begin there.
    """
    first = attach.first
    if attach.num_shards > 1 or len(_local_ranks(attach)) < attach.world_size:
        if first:
            reason = "the machines of a run begin at position 0: only start='first' (or 0) can be asked for"
            raise Refusal("spec", f"start = {first}: {reason}", "start")
        return 0  # the other machines cannot be asked where they begin
    if first is not None and attach.position is None:
        try:
            check_start(_order_of(attach, samples), first, attach.epoch)
        except ValueError as e:
            raise Refusal("spec", str(e), "start") from e
    return first


def _why(apart: Apart | None) -> str:
    """How slow the pipelines of jobs are, for people."""
    if apart is None:
        return ""
    return (
        f" (uid {apart.uid}: its pipeline takes {apart.sample_ns / 1e6:.1f} ms of CPU time a sample; reading, decoding "
        f"and all other pipelines take {apart.rest_ns / 1e6:.1f} ms)"
    )


def _order_of(attach: Attach, samples: int) -> Order:
    whole = batch_rows(attach.batching, attach.batch_size)
    return make_order(attach.shuffle, samples, attach.seed, _shard(attach), whole)


def _given_place(attach: Attach, samples: int) -> Place | None:
    """Where a resumed job stands, in the line of its shard.

    Raises:
        Refusal: Its shards cannot all stand there.
    """
    if attach.position is None or attach.epoch_start is None:
        return None
    try:
        return Place(None, None, *_shard(attach).place(attach.epoch, attach.epoch_start, attach.position, samples))
    except ValueError as e:
        raise Refusal("spec", str(e), "num_shards") from e


def _local_ranks(attach: Attach) -> range:
    """The ranks of the job that will attach to this daemon: those on other machines have daemons of their own."""
    if attach.local_ranks is None:
        return range(attach.world_size)
    first, count = attach.local_ranks
    return range(first, first + count)


def _rounds_of(attach: Attach, rank: int) -> int:
    # Siblings that come back as well may be a step or two behind; those that never left stay where they are.
    return attach.rounds if rank == attach.rank else max(0, attach.rounds - _SIBLINGS_BEHIND)
