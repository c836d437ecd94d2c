"""A world around the coordinator: rings that remember who wrote what, workers that die and hang, clients that hold.

Everything is plain data. Rings are dictionaries from row to position, clients are real `prepclient.session.Session`s,
and every action of the coordinator is checked against what the world knows before it is carried out.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from dataclasses import dataclass, field

from prepclient import RandomResizedCrop, SyntheticImages
from prepclient.session import Session
from prepserver.order import make_order
from prepserver.pipeline.batches import Batch, BatchShape, Starts
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol import work
from prepserver.protocol.messages import SYNC_AFTER_S, Attach, Shuffle
from prepserver.schedule.actions import (
    Action,
    Admit,
    Announce,
    DropRing,
    End,
    GoesAlone,
    Joined,
    KillWorker,
    MakeRing,
    Move,
    QuarantineSample,
    Refuse,
    Say,
    Submit,
)
from prepserver.schedule.asked import check
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.dispatch import GROWN_QUICK
from prepserver.schedule.events import (
    ChunkFailed,
    ChunkMade,
    Event,
    Limits,
    RankAsks,
    RankAttaches,
    RankLeft,
    Released,
    RingMade,
    RingRefused,
    Tick,
    WorkerLost,
    WorkerUp,
)
from prepserver.schedule.join import Place
from prepserver.schedule.lag import Parting
from prepserver.schedule.records import BadRow, Suspect, Took
from prepserver.schedule.strikes import CRASH_STRIKES
from tests.support.consistency import validate
from tests.support.sessions import hand_out

N = 24
BLOCK = 8


@functools.cache
def pipeline_of(number: int) -> Pipeline:
    return Pipeline.from_ops([RandomResizedCrop(8 + number)], 1)


@dataclass(frozen=True)
class Blocks:
    """Where epochs may begin in cyclic order, with short blocks."""

    n: int
    block: int

    def next_start(self, position: int) -> int:
        return -(-position // self.block) * self.block

    def indices(self, position: int, count: int) -> list[int]:
        return [p % self.n for p in range(position, position + count)]


@dataclass(frozen=True)
class Ask:
    """What a job asks for beside its batches."""

    source: str
    pipeline: int = 0
    owner: int = 0
    shuffle: Shuffle = "cyclic"
    epoch: int = 0
    position: int | None = None  # of a job that resumes, in the first epoch that can hold it
    join_wait_s: float = 1.0
    early: bool = True


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

    fill: work.Fill
    written: int = 0


@dataclass
class Client:
    """A rank: its session and what it holds. `rings` says from which position on its rows are in which lane."""

    cursor: int
    stream: int
    job: int
    owner: int
    asked: RankAttaches
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
        for start, lane in reversed(self.rings):
            if start <= position:
                return lane
        raise AssertionError(f"no ring holds {position}")

    def needs(self, lane: int, position: int) -> bool:
        """Whether it may yet read this position's row of this lane."""
        return position >= self.session.released_upto and self.lane_at(position) == lane

    def move(self, start: int, lane: int) -> None:
        while len(self.rings) > 1 and self.rings[-1][0] >= start:
            self.rings.pop()
        self.rings.append((start, lane))


class World:
    """A coordinator with its clients, workers and clock."""

    def __init__(self, chunk_rows: int = 4, n: int = N, block: int = BLOCK, *, validates: bool = False) -> None:
        self.chunk_rows = chunk_rows
        self.n = n
        self.block = block
        self.validates = validates
        self.coordinator = Coordinator(self._order, chunk_rows)
        self.table = self.coordinator.table
        self.row_groups: tuple[int, ...] = ()  # of all sources
        self.decode_ns = 0  # what decoding one takes
        self.extra_rows = 0  # that a new ring gets beyond what it needs
        self.is_short = False  # no ring can be made
        self.limits = Limits()
        self.refused: list[Refuse] = []
        self.lanes: dict[int, WorldLane] = {}
        self.left: dict[int, WorldLane] = {}  # dropped, and still read
        self.rings: dict[int, int] = {}  # rows of those that no worker has heard of
        self.alone: list[str] = []  # why streams wait for others no more
        self.joined: list[Joined] = []
        self.said: list[str] = []
        self.rows_made = 0
        self.streams: set[int] = set()
        self.clients: dict[int, Client] = {}
        self.workers: dict[int, list[WorldTask]] = {}
        self.retired: set[int] = set()
        self.stuck: dict[int, list[WorldTask]] = {}
        self.quarantined: list[tuple[str, int, str]] = []
        self.now_s = 0.0
        self.sample_ns: dict[int, int] = {}  # by pipeline; what is not in it costs nothing
        self.shared_ns = 1_000_000
        self._answers: dict[int, Admit | Refuse] = {}
        self._ids = 0

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def _order(self, attach: Attach, samples: int) -> Starts:
        return Blocks(samples, self.block) if attach.shuffle == "cyclic" else make_order(attach.shuffle, samples, 0)

    @property
    def parted(self) -> list[Parting]:
        return [what for _, what, _ in self.coordinator.story if isinstance(what, Parting)]

    # -- the coordinator's actions, each checked ------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Something happens, and all that follows from it is done."""
        done: list[Action] = []
        answer: Event | None = event
        while answer is not None:
            event, answer = answer, None
            actions = self.coordinator.handle(event, self.now_s)
            # places that are kept no longer
            self.clients = {c: client for c, client in self.clients.items() if client.present or self.table.knows(c)}
            for action in itertools.chain(actions, self.coordinator.later()):
                assert answer is None, "a question about memory is the last action"
                answer = self._do(action)
                done.append(action)
            if self.validates and answer is None:
                validate(self.coordinator)
                for client in [client for client in self.clients.values() if client.present]:
                    assert client.stream == self.table.stream_of(client.cursor).id, "a client reads another stream"
        return done

    def _do(self, action: Action) -> Event | None:
        match action:
            case Submit(worker, fill):
                self._submit(worker, fill)
            case Announce(cursor, upto, bad):
                self._announced(self.clients[cursor], upto, bad)
            case MakeRing():
                return self._make_ring(action)
            case DropRing() | work.AddStream() | work.AddLane() | work.DropLane() | work.DropStream():
                self._open_or_drop(action)
            case Admit() | Refuse() | End():
                self._answer(action)
            case Move() | Joined() | GoesAlone():
                self._rearrange(action)
            case QuarantineSample(source, index, pipeline):
                assert (source, index, pipeline) not in self.quarantined, "quarantined twice"
                self.quarantined.append((source, index, pipeline))
            case Say(_, text):
                self.said.append(text)
            case KillWorker():
                pass  # it may take long to die
        return None

    def _answer(self, action: Admit | Refuse | End) -> None:
        match action:
            case Admit(asker=asker) | Refuse(asker=asker):
                self._answers[asker] = action
                if isinstance(action, Admit):
                    self._admitted(action)
            case End(cursor):
                del self.clients[cursor]

    def _make_ring(self, asked: MakeRing) -> Event:
        assert 0 < asked.needed <= asked.wanted
        if self.is_short:
            return RingRefused("memory", "no room")
        self.rings[asked.lane] = asked.needed + self.extra_rows
        return RingMade(self.rings[asked.lane])

    def _open_or_drop(self, action: work.AddStream | work.AddLane | work.DropLane | work.DropStream | DropRing) -> None:
        match action:
            case DropRing(lane):
                del self.rings[lane]
            case work.AddStream(stream):
                self.streams.add(stream)
            case work.AddLane(lane, stream, pipeline):
                assert stream in self.streams
                number = next(k for k in range(8) if pipeline_of(k).to_wire() == pipeline)
                self.lanes[lane] = WorldLane(lane, stream, number, self.rings.pop(lane))
            case work.DropLane(lane):
                in_use = [c for c in self.clients.values() if self.table.knows(c.cursor) and c.lane == lane]
                assert not in_use or not any(c.present for c in in_use), "a lane in use was dropped"
                self.left[lane] = self.lanes.pop(lane)  # a second drop is a KeyError
            case work.DropStream(stream):
                assert not any(lane.stream == stream for lane in self.lanes.values())
                self.streams.remove(stream)

    def _rearrange(self, action: Move | Joined | GoesAlone) -> None:
        match action:
            case Move(cursor, lane, start):
                client = self.clients[cursor]
                client.move(start, lane)
                for rank in [c for c in self.clients.values() if c.job == client.job]:
                    rank.stream = self.lanes[lane].stream  # absent ranks part along, without a Move
            case Joined(stream, into, lanes):
                self.joined.append(action)
                for lane in [old for old, new in lanes.items() if old == new]:
                    self.lanes[lane].stream = into
                for client in [c for c in self.clients.values() if c.stream == stream]:
                    client.stream = into
            case GoesAlone(_, why):
                self.alone.append(why)

    def _submit(self, worker: int, fill: work.Fill) -> None:
        tasks = self.workers[worker]
        assert worker not in self.retired, "a task for a worker that retires"
        assert len(tasks) < 2, "more than one running and one queued"
        assert 1 <= fill.count <= GROWN_QUICK[0] * self.chunk_rows
        assert fill.stream in self.streams
        assert fill.lanes
        assert all(self.lanes[lane].stream == fill.stream for lane in fill.lanes)
        for lane_id in fill.lanes:
            positions = range(fill.position, fill.position + fill.count)
            self._check_free(self.lanes[lane_id], positions)
            for client in self.clients.values():
                promised = [p for p in positions if p < client.told and client.needs(lane_id, p)]
                assert not promised, f"{promised} were promised, and are to be made again under their reader"
        tasks.append(WorldTask(fill))

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
            if lane.id in task.fill.lanes:
                for q in range(task.fill.position, task.fill.position + task.fill.count):
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
        """Every row of an announced and unreleased batch is filled, for this lane."""
        first = max(batch.start, client.session.released_upto)
        for (start, lane_id), (stop, _) in itertools.pairwise([*client.rings, (batch.stop, 0)]):
            part = range(max(start, first), min(stop, batch.stop))
            if not part:
                continue
            lane = self.memory(lane_id)
            for p in part:
                assert lane.holds.get(p % lane.rows) == p, f"position {p} was promised, its row holds another"
                assert p in lane.made, f"position {p} was promised before it was made"

    # -- jobs -------------------------------------------------------------------------------------------

    def join(
        self,
        ask: Ask,
        shape: BatchShape,
        extra_rows: int,
        prefetch: int,
        rows_per_s: float = 100.0,
        lag: str = "wait",
    ) -> tuple[Place, int] | None:
        """A job comes: its first rank attaches, and places are kept for the others.

        Returns:
            Where it begins, and the job; None if it was refused.
        """
        self.extra_rows, short = extra_rows, self.is_short
        self.is_short = short or not ask.early
        attach = Attach(
            f"job{self.new_id()}", SyntheticImages(self.n, 8).to_wire(),
            ask.shuffle, 0, pipeline_of(ask.pipeline).to_wire(), shape.batch_size, shape.drop_last, 0,
            shape.world_size, prefetch=prefetch, epoch=ask.epoch, position=ask.position,
            epoch_start=None if ask.position is None else ask.position // self.n * self.n,
            join_wait_s=ask.join_wait_s, lag=lag, batching=shape.batching,
        )  # fmt: skip
        listing = work.Indexed(
            "/none", self.n, 0, ask.source, "content", row_groups=list(self.row_groups), kept_rows=self.n // 2
        )
        known = tuple((index, pipeline) for source, index, pipeline in self.quarantined if source == ask.source)
        admit, done = self.ask(
            RankAttaches(self.new_id(), ask.owner, check(attach), listing, rows_per_s, self.limits, known)
        )
        self.extra_rows, self.is_short = 0, short
        if isinstance(admit, Refuse):
            self.refused.append(admit)
            return None
        client = self.clients[admit.cursor]
        news = {type(action) for action in done}
        waits_for = self.coordinator.waits_for.get(client.stream) if work.AddStream in news else None
        where = Place(
            None if work.AddStream in news else client.stream, None if work.AddLane in news else admit.lane,
            admit.epoch_start, admit.position, into=waits_for,
        )  # fmt: skip
        return where, client.job

    def ask(self, event: RankAttaches) -> tuple[Admit | Refuse, list[Action]]:
        """A rank asks: the answer, and all that was done."""
        done = self.handle(event)
        return self._answers.pop(event.asker), done

    def _admitted(self, admit: Admit) -> None:
        """The client of this rank, and of all others for which places are kept."""
        job = self.coordinator.job_of(admit.cursor)
        stream = self.lanes[admit.lane].stream  # now: it may join another one by what follows from the same event
        asked = self._asking
        for rank, cursor in job.cursors.items():
            if cursor in self.clients:
                continue
            attach = dataclasses.replace(asked.asked.attach, rank=rank)
            shape = BatchShape(attach.batch_size, attach.drop_last, rank, attach.world_size, batching=attach.batching)
            session = Session(self.n, 0, job.epoch_start, job.position, shape)
            again = dataclasses.replace(asked, asked=dataclasses.replace(asked.asked, attach=attach))
            self.clients[cursor] = Client(
                cursor, stream, job.id, asked.uid, again, session, session.released_upto, False, [(0, admit.lane)]
            )
        client = self.clients[admit.cursor]
        client.present, client.stream, client.rings = True, stream, [(0, admit.lane)]
        assert client.told == admit.first

    @property
    def _asking(self) -> RankAttaches:
        """The question that is being answered."""
        asked = [what for _, what, _ in self.coordinator.story if isinstance(what, RankAttaches)]
        return asked[-1]

    def present(self, cursor: int) -> None:
        """A rank for which a place is kept attaches; it may get another place if the kept one is useless by now."""
        client = self.clients[cursor]
        admit, _ = self.ask(dataclasses.replace(client.asked, asker=self.new_id()))
        if isinstance(admit, Refuse):
            assert self.is_short, admit.text
            self.clients.pop(cursor, None)
        elif admit.cursor != cursor:
            now = self.clients[admit.cursor]
            for name in (f.name for f in dataclasses.fields(Client)):
                setattr(client, name, getattr(now, name))
            self.clients[admit.cursor] = client

    def leave(self, cursor: int) -> None:
        del self.clients[cursor]
        self.handle(RankLeft(cursor))

    def pick_up(self, client: Client) -> bool:
        """The client looks at its next batch, if it was told of it."""
        expected = client.session.next_ready()
        if expected is None:
            return False
        batch = client.session.pick_up()
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
            upto = client.session.released_upto
            self.handle(Released(client.cursor, upto, int(client.waited_s * 1e9), len(client.had)))

    def ask_again(self, client: Client) -> None:
        """A Sync."""
        self.handle(Released(client.cursor, client.session.released_upto))
        (announce,) = self.handle(RankAsks(client.cursor))
        assert isinstance(announce, Announce)
        assert announce.upto >= client.told

    def stand_waiting(self, client: Client, seconds: float) -> None:
        """The client is in `next()` for so long; now and then it asks again."""
        asked = client.waits_s // SYNC_AFTER_S
        client.waits_s += seconds
        if client.waits_s // SYNC_AFTER_S > asked:
            self.ask_again(client)

    # -- workers ----------------------------------------------------------------------------------------

    def worker_up(self) -> None:
        worker = self.new_id()
        self.workers[worker] = []
        self.handle(WorkerUp(worker))

    def write(self, task: WorldTask, count: int) -> None:
        """A worker writes its next rows: never over one that some client of the lane still needs."""
        fill = task.fill
        stop = min(fill.count, task.written + count)
        for p in range(fill.position + task.written, fill.position + stop):
            for lane_id in fill.lanes:
                lane = self.memory(lane_id)  # dropped meanwhile, maybe: who was moved reads its rows still
                before = lane.holds.get(p % lane.rows)
                if before is not None and before != p and before in lane.made:
                    needed = any(c.needs(lane_id, before) for c in self.clients.values())
                    assert not needed, f"{p} overwrites {before}, which is needed"
                lane.holds[p % lane.rows] = p
        task.written = stop

    def finish(self, worker: int, which: int = 0) -> None:
        task = self.workers[worker].pop(which)
        fill = task.fill
        self.write(task, fill.count)
        self.rows_made += fill.count
        for lane_id in fill.lanes:
            self.memory(lane_id).made.update(range(fill.position, fill.position + fill.count))
        self.handle(ChunkMade(worker, fill.task, tuple(self._bad_rows(fill)), self._took(fill)))

    def _took(self, fill: work.Fill) -> Took:
        """A row costs what its pipelines do, and something for all."""
        lanes_ns = tuple(self.sample_ns.get(self.memory(lane).pipeline, 0) * fill.count for lane in fill.lanes)
        shared_ns = self.shared_ns * fill.count
        if self.coordinator.workers.tasks[fill.task].decodes:
            shared_ns += self.decode_ns
        return Took(sum(lanes_ns) + shared_ns, shared_ns, lanes_ns if len(lanes_ns) > 1 else ())

    def _bad_rows(self, fill: work.Fill) -> list[BadRow]:
        bad = []
        for p in range(fill.position, fill.position + fill.count):
            where = [x for x in fill.lanes if x in self.lanes and is_bad(p, self.lanes[x].pipeline)]
            if where:
                everywhere = len(where) == len(fill.lanes)
                bad.append(BadRow(p, p % N, f"no. {p}", () if everywhere else tuple(where)))
        return bad

    def fail(self, worker: int) -> None:
        task = self.workers[worker].pop(0)
        self.handle(ChunkFailed(worker, task.fill.task, "no reason"))

    def kill(self, worker: int, suspect: Suspect | None = None) -> None:
        """It may have written anything of its tasks."""
        del self.workers[worker]
        self.handle(WorkerLost(worker, suspect, CRASH_STRIKES))

    def hang(self, worker: int, suspect: Suspect | None = None) -> None:
        self.stuck[worker] = self.workers.pop(worker)
        self.handle(WorkerLost(worker, suspect, CRASH_STRIKES, stuck=True))

    def wait(self, seconds: float) -> None:
        """Time passes: chunks that take too long may be made a second time. Who has no batch is in `next()`."""
        self.now_s += seconds
        for client in list(self.clients.values()):
            if client.present and not client.held and client.session.next_ready() is None:
                self.stand_waiting(client, seconds)
        self.tick()

    def tick(self) -> None:
        """What the daemon does several times a second. No worker gets two late chunks."""
        idle = sum(not tasks for worker, tasks in self.workers.items() if worker not in self.retired)
        before = self._made_twice()
        self.handle(Tick())
        assert len(self._made_twice() - before) <= idle

    def _made_twice(self) -> set[int]:
        return {number for number, task in self.coordinator.workers.tasks.items() if task.twice}

    def stuck_ends(self, worker: int) -> None:
        for task in self.stuck.pop(worker):
            self.write(task, 1)  # its last breath
        self.handle(WorkerLost(worker))

    # -- in the end -------------------------------------------------------------------------------------

    def settle(self, batches: int) -> None:
        """With working workers and clients that read, every client gets `batches` more; else there is a deadlock."""
        for worker in list(self.stuck):
            self.stuck_ends(worker)
        for client in list(self.clients.values()):
            if not client.present:
                self.present(client.cursor)
        if not self.workers.keys() - self.retired:
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
        if not self.workers.keys() - self.retired:
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
        """The position of every rank: the text of a deadlock."""
        lines = ["nobody can move"]
        for stream in self.table.streams.values():
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
