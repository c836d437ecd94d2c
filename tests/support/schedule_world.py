"""A world around the scheduler: rings that remember who wrote what, workers that die and hang, clients that hold.

Everything is plain data. Rings are dictionaries from row to position, clients are real `prepclient.session.Session`s,
and every action of the scheduler is checked against what the world knows before it is carried out.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from prepclient.session import Session, Shape
from prepserver.order import make_order
from prepserver.pipeline.batches import Batch, BatchLine
from prepserver.schedule.actions import (
    Action,
    Announce,
    DropLane,
    DropStream,
    GoesAlone,
    Joined,
    Move,
    QuarantineSample,
    Submit,
)
from prepserver.schedule.early import PATIENCE
from prepserver.schedule.join import Place, Request, place
from prepserver.schedule.lag import ASKS_AFTER_S, LagWatch, Parting, left_out, still_holds
from prepserver.schedule.pace import apart_key, slow_partings
from prepserver.schedule.scheduler import GROWN, Scheduler, Suspect
from prepserver.schedule.stream import BadRow, Cursor, Lane, Took
from tests.support.sessions import hand_out

N = 24
BLOCK = 8


@dataclass
class WorldLane:
    """A ring: which position each row holds, and which positions were finished in it."""

    id: int
    stream: int
    pipeline: int
    rows: int
    holds: dict[int, int] = field(default_factory=dict)
    made: set[int] = field(default_factory=set)


@dataclass
class WorldTask:
    """A chunk in the hands of a worker, which may have written part of it."""

    submit: Submit
    written: int = 0


@dataclass
class Client:
    """A rank: its session and what it holds. `rings` says from which position on its rows are in which lane."""

    cursor: int
    stream: int
    group: int
    owner: int
    session: Session
    told: int
    present: bool
    rings: list[tuple[int, int]]
    held: list[Batch] = field(default_factory=list)
    had: list[Batch] = field(default_factory=list)
    waited_s: float = 0.0  # in all, as the client says it: without the last batch's wait,
    last_wait_s: float = 0.0  # which is this,
    waits_s: float = 0.0  # and for the next one, until now

    @property
    def lane(self) -> int:
        return self.rings[-1][1]

    def lane_at(self, position: int) -> int:
        return [lane for start, lane in self.rings if start <= position][-1]

    def needs(self, lane: int, position: int) -> bool:
        """Whether it may yet read this position's row of this lane."""
        return position >= self.session.released_upto and self.lane_at(position) == lane

    def move(self, start: int, lane: int) -> None:
        while len(self.rings) > 1 and self.rings[-1][0] >= start:
            self.rings.pop()
        self.rings.append((start, lane))


class World:
    """See the module."""

    def __init__(self, chunk_rows: int = 4, n: int = N, block: int = BLOCK) -> None:
        self.scheduler = Scheduler(chunk_rows)
        self.chunk_rows = chunk_rows
        self.n = n
        self.block = block
        self.lag = LagWatch(chunk_rows)
        self.lanes: dict[int, WorldLane] = {}
        self.left: dict[int, WorldLane] = {}  # dropped, and still read
        self.alone: list[str] = []  # why streams wait for others no more
        self.joined: list[Joined] = []
        self.parted: list[Parting] = []
        self.rows_made = 0
        self.streams: set[int] = set()
        self.clients: dict[int, Client] = {}
        self.workers: dict[int, list[WorldTask]] = {}
        self.stuck: dict[int, list[WorldTask]] = {}
        self.quarantined: list[QuarantineSample] = []
        self.now_s = 0.0
        self.sample_ns: dict[int, int] = {}  # by pipeline; what is not in it costs nothing
        self.shared_ns = 1_000_000
        self._ids = 0

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    # -- the scheduler's actions, each checked --------------------------------------------------------

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Submit():
                    self._submit(action)
                case Announce(cursor, upto, bad):
                    self._announced(self.clients[cursor], upto, bad)
                case DropLane(lane):
                    in_use = [c for c in self.clients.values() if c.lane == lane]
                    assert not in_use, "a lane in use was dropped"
                    self.left[lane] = self.lanes.pop(lane)  # a second drop is a KeyError
                case Move() | Joined() | GoesAlone():
                    self._rearrange(action)
                case DropStream(stream):
                    assert not any(lane.stream == stream for lane in self.lanes.values())
                    self.streams.remove(stream)
                case QuarantineSample():
                    assert action not in self.quarantined, "quarantined twice"
                    self.quarantined.append(action)

    def _rearrange(self, action: Move | Joined | GoesAlone) -> None:
        match action:
            case Move(cursor, lane, start):
                client = self.clients[cursor]
                client.move(start, lane)
                client.stream = self.lanes[lane].stream
            case Joined(stream, into, lanes):
                self.joined.append(action)
                for lane in [old for old, new in lanes.items() if old == new]:
                    self.lanes[lane].stream = into
                for client in [c for c in self.clients.values() if c.stream == stream]:
                    client.stream = into
            case GoesAlone(_, why):
                self.alone.append(why)

    def _submit(self, submit: Submit) -> None:
        tasks = self.workers[submit.worker]
        assert len(tasks) < 2, "more than one running and one queued"
        assert 1 <= submit.count <= GROWN[0] * self.chunk_rows
        assert submit.stream in self.streams
        assert submit.lanes
        assert all(self.lanes[lane].stream == submit.stream for lane in submit.lanes)
        for lane_id in submit.lanes:
            positions = range(submit.position, submit.position + submit.count)
            self._check_free(self.lanes[lane_id], positions)
            for client in self.clients.values():
                promised = [p for p in positions if p < client.told and client.needs(lane_id, p)]
                assert not promised, f"{promised} were promised, and are to be made again under their reader"
        tasks.append(WorldTask(submit))

    def _check_free(self, lane: WorldLane, positions: range) -> None:
        """Nobody needs what these rows hold, and nobody may yet write another position into them."""
        rows = {p % lane.rows: p for p in positions}
        assert len(rows) == len(positions), "a chunk longer than its ring"
        for row, p in rows.items():
            before = lane.holds.get(row, p)
            if before != p and before in lane.made:
                needed = any(c.needs(lane.id, before) for c in self.clients.values())
                assert not needed, f"{p} is to be put over {before}, which is needed"
        for task in [t for held in (*self.workers.values(), *self.stuck.values()) for t in held]:
            if lane.id in task.submit.lanes:
                for q in range(task.submit.position, task.submit.position + task.submit.count):
                    assert rows.get(q % lane.rows, q) == q, f"{q} may yet be written where {rows[q % lane.rows]} goes"

    def memory(self, lane: int) -> WorldLane:
        """A ring, in use or left."""
        return self.lanes[lane] if lane in self.lanes else self.left[lane]

    def _announced(self, client: Client, upto: int, bad: tuple[tuple[int, int, str], ...]) -> None:
        assert client.present, "told before it attached"
        assert upto >= client.told
        client.told = upto
        client.session.ready(upto, bad)
        line = copy.copy(client.session._ahead)
        while (batch := line.peek()).stop <= upto:
            self._check_rows(client, batch)
            line.advance()
        assert batch.start >= upto, "told of rows that are no whole batch of this rank"

    def _check_rows(self, client: Client, batch: Batch) -> None:
        """Every row of a batch that was announced and not released is there, made for this lane."""
        for p in range(max(batch.start, client.session.released_upto), batch.stop):
            lane = self.memory(client.lane_at(p))
            assert lane.holds.get(p % lane.rows) == p, f"position {p} was promised, its row holds another"
            assert p in lane.made, f"position {p} was promised before it was made"

    # -- jobs -------------------------------------------------------------------------------------------

    def join(
        self,
        request: Request,
        shape: Shape,
        extra_rows: int,
        prefetch: int,
        rows_per_s: float = 100.0,
        lag: str = "wait",
    ) -> tuple[Place, int]:
        """A job comes, as the daemon admits one: its first rank is present, places are kept for the others."""
        where = place(request, self.scheduler.streams.values(), rows_per_s, self.scheduler.waits_for)
        stream_id = where.stream if where.stream is not None else self.new_id()
        if where.stream is None:
            self.scheduler.add_stream(
                stream_id, request.stream_key, "source", self.n, self._next_start(request.shuffle), where.position
            )
            self.streams.add(stream_id)
        lane_id = where.lane if where.lane is not None else self.new_id()
        if where.lane is None:
            rows = max(request.rows_needed, where.rows) + extra_rows
            assert where.position >= self.scheduler.streams[stream_id].head
            self.scheduler.add_lane(stream_id, Lane(lane_id, request.lane_key, rows, where.position))
            self.lanes[lane_id] = WorldLane(lane_id, stream_id, int(request.lane_key[0][1:]), rows)
        if where.into is not None:
            self.scheduler.start_early(
                stream_id, where.into, shape.batch_size * shape.world_size, PATIENCE * request.join_wait_s
            )
        else:
            self.scheduler.share_wait(stream_id, PATIENCE * request.join_wait_s)
        lane = self.lanes[lane_id]
        assert lane.rows >= request.rows_needed
        group = self.new_id()
        for rank in range(shape.world_size):
            ranked = dataclasses.replace(shape, rank=rank)
            session = Session(self.n, 0, where.epoch_start, where.position, ranked)
            line = BatchLine(
                self.n, where.epoch_start, where.position, shape.batch_size, shape.drop_last, rank, shape.world_size,
                batching=shape.batching,
            )  # fmt: skip
            first = line.peek().start
            cursor = Cursor(
                self.new_id(), lane_id, group, line, prefetch or lane.rows, first, first, present=False, lag=lag
            )
            self.clients[cursor.id] = Client(
                cursor.id, stream_id, group, request.lane_key[1], session, first, False, [(0, lane_id)]
            )
            self.scheduler.add_cursor(stream_id, cursor)
        self.present(min(c.cursor for c in self.clients.values() if c.group == group))
        return where, group

    def _next_start(self, shuffle: Any) -> Callable[[int], int]:
        if shuffle == "cyclic":
            return lambda position: -(-position // self.block) * self.block
        return make_order(shuffle, self.n, 0).next_start

    def _part(self, parting: Parting) -> None:
        """As the daemon does it: new rings for all that it concerns."""
        self.parted.append(parting)
        stream = self.scheduler.streams[parting.stream]
        leaving = sorted({c.lane for c in stream.cursors.values() if c.group in parting.groups})
        own: dict[int, Lane] = {}
        shared: dict[int, Lane] = {}
        own_id = self.new_id()
        for lane_id in leaving:
            stay = any(c.lane == lane_id and c.group not in parting.groups for c in stream.cursors.values())
            if stay:
                shared[lane_id] = self._again(stream.lanes[lane_id], stream.id, stream.watermark)
            own[lane_id] = self._again(stream.lanes[lane_id], own_id, stream.watermark)
        self.streams.add(own_id)
        self.lag.parted(own_id, self.now_s)
        key = apart_key(stream.key, parting.apart.uid) if parting.apart is not None else None
        actions = self.scheduler.part(parting.stream, parting.groups, (own_id, own), shared, key)
        for client in self.clients.values():
            if client.group in parting.groups:
                client.stream = own_id
                if not client.present:
                    client.rings = [(0, self._cursor(client).lane)]
        self.do(actions)

    def _again(self, lane: Lane, stream: int, start: int) -> Lane:
        made = Lane(self.new_id(), lane.key, lane.rows, start)
        self.lanes[made.id] = WorldLane(made.id, stream, self.lanes[lane.id].pipeline, lane.rows)
        return made

    def present(self, cursor: int) -> None:
        client = self.clients[cursor]
        client.present = True
        client.rings = [(0, self._cursor(client).lane)]  # it is given the ring that there is now, and no other
        self.do(self.scheduler.cursor_present(cursor))

    def leave(self, cursor: int) -> None:
        del self.clients[cursor]
        self.do(self.scheduler.remove_cursor(cursor))

    def pick_up(self, client: Client) -> bool:
        """The client looks at its next batch, if it was told of it."""
        expected = client.session.next_ready()
        if expected is None:
            return False
        batch = client.session.stage()
        assert batch == expected
        handed, bad = hand_out(client.session)
        assert handed == batch
        pipeline = self.memory(client.lane).pipeline
        assert [b.position for b in bad] == [p for p in range(batch.start, batch.stop) if is_bad(p, pipeline)]
        self._check_rows(client, batch)
        client.held.append(batch)
        client.had.append(batch)
        client.waited_s += client.last_wait_s
        client.last_wait_s, client.waits_s = client.waits_s, 0.0
        return True

    def give_back(self, client: Client, which: int) -> None:
        """The client is done with one of the batches that it holds; until now nobody touched its rows."""
        batch = client.held.pop(which % len(client.held))
        self._check_rows(client, batch)
        if client.session.give_back(batch.start):
            self._cursor(client).says(int(client.waited_s * 1e9), len(client.had))
            self.do(self.scheduler.release(client.cursor, client.session.released_upto))

    def ask_again(self, client: Client) -> None:
        """A Sync."""
        self.do(self.scheduler.release(client.cursor, client.session.released_upto))
        announce = self.scheduler.repeat(client.cursor)
        assert announce.upto >= client.told
        self.do([announce])

    def _cursor(self, client: Client) -> Cursor:
        return self.scheduler.cursor(client.cursor)

    def stand_waiting(self, client: Client, seconds: float) -> None:
        """The client is in `next()` for so long; now and then it asks again."""
        asked = client.waits_s // ASKS_AFTER_S
        client.waits_s += seconds
        if client.waits_s // ASKS_AFTER_S > asked:
            self.ask_again(client)
            self._cursor(client).asks()

    # -- workers ----------------------------------------------------------------------------------------

    def worker_up(self) -> None:
        worker = self.new_id()
        self.workers[worker] = []
        self.do(self.scheduler.worker_up(worker))

    def write(self, task: WorldTask, count: int) -> None:
        """A worker writes its next rows: never over one that some client of the lane still needs."""
        submit = task.submit
        stop = min(submit.count, task.written + count)
        for p in range(submit.position + task.written, submit.position + stop):
            for lane_id in submit.lanes:
                lane = self.memory(lane_id)  # dropped meanwhile, maybe: who was moved reads its rows still
                before = lane.holds.get(p % lane.rows)
                if before is not None and before != p and before in lane.made:
                    needed = any(c.needs(lane_id, before) for c in self.clients.values())
                    assert not needed, f"{p} overwrites {before}, which is needed"
                lane.holds[p % lane.rows] = p
        task.written = stop

    def finish(self, worker: int, which: int = 0) -> None:
        task = self.workers[worker].pop(which)
        submit = task.submit
        self.write(task, submit.count)
        self.rows_made += submit.count
        for lane_id in submit.lanes:
            self.memory(lane_id).made.update(range(submit.position, submit.position + submit.count))
        self.do(self.scheduler.task_done(worker, submit.task, self._bad_rows(submit), self._took(submit)))
        self.do(self.scheduler.give_out())

    def _took(self, submit: Submit) -> Took:
        """A row costs what its pipelines do, and something for all."""
        lanes_ns = tuple(self.sample_ns.get(self.memory(lane).pipeline, 0) * submit.count for lane in submit.lanes)
        shared_ns = self.shared_ns * submit.count
        return Took(sum(lanes_ns) + shared_ns, shared_ns, lanes_ns if len(lanes_ns) > 1 else ())

    def _bad_rows(self, submit: Submit) -> list[BadRow]:
        bad = []
        for p in range(submit.position, submit.position + submit.count):
            where = [x for x in submit.lanes if x in self.lanes and is_bad(p, self.lanes[x].pipeline)]
            if where:
                everywhere = len(where) == len(submit.lanes)
                bad.append(BadRow(p, p % N, f"no. {p}", () if everywhere else tuple(where)))
        return bad

    def fail(self, worker: int) -> None:
        task = self.workers[worker].pop(0)
        self.do(self.scheduler.task_failed(worker, task.submit.task))

    def kill(self, worker: int, suspect: Suspect | None = None) -> None:
        """It may have written anything of its tasks."""
        del self.workers[worker]
        self.do(self.scheduler.worker_lost(worker, suspect))

    def hang(self, worker: int, suspect: Suspect | None = None) -> None:
        self.stuck[worker] = self.workers.pop(worker)
        self.do(self.scheduler.worker_stuck(worker, suspect))

    def wait(self, seconds: float) -> None:
        """Time passes: chunks that take too long may be made a second time. Who has no batch is in `next()`."""
        self.now_s += seconds
        for client in self.clients.values():
            if client.present and not client.held and client.session.next_ready() is None:
                self.stand_waiting(client, seconds)
        self.tick()

    def tick(self) -> None:
        """What the daemon looks at several times a second."""
        for parting in self.lag.partings(self.scheduler.streams.values(), self.scheduler.workers_idle, self.now_s):
            if still_holds(parting, self.scheduler.streams, self.chunk_rows):
                for cursor in left_out(parting, self.scheduler.streams[parting.stream]):
                    self.leave(cursor.id)
            if still_holds(parting, self.scheduler.streams, self.chunk_rows):
                self._part(parting)
        for stream in list(self.scheduler.streams.values()):
            for parting in slow_partings(stream):
                self._part(parting)
        while meetings := self.lag.meetings([s for s in self.scheduler.streams.values() if s.cap is None], self.now_s):
            self.do(self.scheduler.meet(meetings[0]))
        self.do(self.scheduler.lose_patience(self.now_s))
        self.do(self.scheduler.hedge(self.now_s))

    def stuck_ends(self, worker: int) -> None:
        for task in self.stuck.pop(worker):
            self.write(task, 1)  # its last breath
        self.do(self.scheduler.worker_lost(worker))

    # -- in the end -------------------------------------------------------------------------------------

    def settle(self, batches: int) -> None:
        """With working workers and clients that read, every client gets `batches` more; else there is a deadlock."""
        for worker in list(self.stuck):
            self.stuck_ends(worker)
        for client in list(self.clients.values()):
            if not client.present:
                self.present(client.cursor)
        if not self.workers:
            self.worker_up()
        goals = {c.cursor: len(c.had) + batches for c in self.clients.values()}
        rounds = 0
        while any(len(self.clients[c].had) < goal for c, goal in goals.items()):
            rounds += 1
            # each round ends a task of each worker, so at least one row is made where one is wanted
            assert self._go_round(), self._stand()
            assert rounds < 40 * len(goals) * batches, self._stand()

    def go_on_without(self, owner: int, batches: int, seconds: float) -> None:
        """All jobs of a user stop, and none of its ranks attaches: every job of the others gets `batches` more.

        Each batch comes within `seconds` of the one before. All of them may take longer: one worker may have to make
        many rows of a slow pipeline, and shares its time among all streams.
        """
        for worker in list(self.stuck):
            self.stuck_ends(worker)
        if not self.workers:
            self.worker_up()
        goals = {}
        for client in list(self.clients.values()):
            if client.owner != owner:
                if not client.present:
                    self.present(client.cursor)
                goals[client.cursor] = len(client.had) + batches
        had = {c: (len(self.clients[c].had), self.now_s) for c in goals}  # batches, and since when so many
        while left := [c for c, goal in goals.items() if len(self.clients[c].had) < goal]:
            for c in left:
                batches, since_s = had[c]
                if len(self.clients[c].had) > batches:
                    had[c] = len(self.clients[c].had), self.now_s
                else:
                    assert self.now_s - since_s < seconds, self._stand()
            self._go_round(without=owner)
            self.wait(0.5)

    def _go_round(self, without: int = -1) -> bool:
        """Each worker ends a task, each client takes all that there is; whether anything moved."""
        moved = False
        for worker in list(self.workers):
            if self.workers[worker]:
                self.finish(worker)
                moved = True
        for client in [c for c in self.clients.values() if c.owner != without]:
            while self.pick_up(client):  # a fast one goes on beyond its goal: who stops would hold others back
                moved = True
            while client.held:
                self.give_back(client, 0)
                moved = True
        return moved

    def _stand(self) -> str:
        """Who stands where: the text of a deadlock."""
        lines = ["nobody can move"]
        for stream in self.scheduler.streams.values():
            lines.append(f"stream {stream.id}: low {stream.low} floor {stream.floor} watermark {stream.watermark} "
                         f"head {stream.head} limit {stream.limit}")  # fmt: skip
            lines += [f"  lane {x.id}: {x.rows} rows from {x.start}" for x in stream.lanes.values()]
            lines += [
                f"  cursor {c.id} on lane {c.lane}: released {c.released} announced {c.announced} next {c.line.peek()}"
                for c in stream.cursors.values()
            ]
        return "\n".join(lines)


def is_bad(position: int, pipeline: int) -> bool:
    """Which rows hold a replacement: some in every lane, some only where `pipeline` is 1."""
    return position % 7 == 3 or (pipeline == 1 and position % 11 == 5)
