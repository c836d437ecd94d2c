"""Pipelines of different pace: who has to leave, how it is done, and how the workers are shared out afterwards."""

from __future__ import annotations

import heapq

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prepserver.pipeline.batches import BatchLine, BatchShape
from prepserver.protocol.work import Fill
from prepserver.schedule.actions import Action, Announce, Submit
from prepserver.schedule.pace import EVIDENCE_S, FACTOR, LEAST_SAMPLES, is_apart, slow_lanes
from prepserver.schedule.records import RECENT_SAMPLES, Cursor, Lane, Spent, Took
from tests.support.schedule_world import Ask, Client, World
from tests.support.scheduling import ByHand

MS = 10**6
S = 10**9


def lane(id: int, uid: int, sample_ns: float) -> Lane:
    return Lane(id, ("", uid), 8, 0, spent=Spent(sample_ns, 1))


LANES = st.lists(
    st.builds(lane, st.integers(0, 1000), st.integers(0, 3), st.floats(0, 1e10) | st.sampled_from([0.0, 1e6, 1e9])),
    max_size=8,
    unique_by=lambda each: each.id,
)


def slow(shared_ns: float, *loads: tuple[int, float]) -> set[int]:
    lanes = [lane(id, uid, sample_ns) for id, (uid, sample_ns) in enumerate(loads)]
    return {each.id for each in slow_lanes(lanes, shared_ns)}


def test_a_lane_is_slow_at_some_times_what_another_user_shares() -> None:
    limit = FACTOR * (5 * MS + 1 * MS)
    assert slow(5 * MS, (1, 1 * MS), (2, limit)) == set()
    assert slow(5 * MS, (1, 1 * MS), (2, limit + 1)) == {1}
    assert slow(5 * MS, (1, 1 * MS), (1, 1 * S)) == set()  # its own affair
    assert slow(5 * MS, (1, 1 * S), (2, 1 * S)) == set()  # none is better off without the other


def test_lanes_of_a_user_count_together_and_the_fastest_stay() -> None:
    loads = [(1, 4 * MS), *[(2, 10 * MS)] * 10]
    assert slow(1 * MS, *loads) == set(range(3, 11))


def test_users_do_not_excuse_each_other() -> None:
    assert slow(5 * MS, (1, 1 * MS), (2, 1 * S), (3, 1 * S)) == {1, 2}
    assert slow(0, (1, 1), (2, 4), (3, 16), (4, 64)) == {2, 3}


@given(LANES, st.floats(0, 1e10))
def test_somebody_always_stays_and_finally_all_present_may(lanes: list[Lane], shared_ns: float) -> None:
    for _ in range(len(lanes) + 1):
        gone = slow_lanes(lanes, shared_ns)
        if not gone:
            break
        assert len(gone) < len(lanes)
        assert len({each.uid for each in lanes}) > 1
        lanes = [each for each in lanes if each not in gone]
    wanted = {each.uid: 0.0 for each in lanes}
    for each in lanes:
        wanted[each.uid] += each.spent.sample_ns
    for uid, ns in wanted.items():
        others = [shared_ns + other_ns for other, other_ns in wanted.items() if other != uid]
        assert not others or ns <= FACTOR * min(others) * (1 + 1e-9)


@given(LANES, st.floats(0, 1e10), st.randoms(use_true_random=False))
def test_the_order_of_lanes_does_not_matter(lanes: list[Lane], shared_ns: float, random: object) -> None:
    expected = slow_lanes(lanes, shared_ns)
    random.shuffle(lanes)  # type: ignore[attr-defined]
    assert slow_lanes(lanes, shared_ns) == expected


def test_what_samples_have_taken_is_that_of_the_latest() -> None:
    spent = Spent()
    for ns in (1, 100):
        for _ in range(8 * RECENT_SAMPLES // 64):
            spent.add(64 * ns, 64)
    assert 99 < spent.sample_ns <= 100
    assert spent.samples <= RECENT_SAMPLES + 64


# -- jobs that are parted -------------------------------------------------------------------------------


def begin(world: World, pipeline: int, owner: int, *, world_size: int = 1, lag: str = "wait") -> Client:
    """A job from position 0 on, of which one rank is there."""
    ask = Ask("key", pipeline, owner, "full", join_wait_s=1e4)
    joined = world.join(ask, BatchShape(8, False, 0, world_size), 48, 0, lag=lag)
    assert joined is not None
    return next(c for c in world.clients.values() if c.job == joined[1])


def go_on(world: World, rounds: int) -> None:
    while len(world.workers) < 2:
        world.worker_up()
    for _ in range(rounds):
        world.wait(0.2)
        world._go_round()


def keys(world: World) -> list[bool]:
    return [is_apart(stream.key) for stream in world.table.streams.values()]


@pytest.fixture
def world() -> World:
    made = World(4, n=4096)
    made.sample_ns, made.shared_ns = {1: 1 * S}, 100 * MS
    return made


def test_a_slow_pipeline_parts_from_another_users_for_good(world: World) -> None:
    quick, slow = begin(world, 0, 0), begin(world, 1, 1)
    go_on(world, 2 * LEAST_SAMPLES)
    (parting,) = world.parted
    assert parting.jobs == (slow.job,)
    assert parting.apart is not None
    assert (parting.apart.uid, parting.apart.sample_ns) == (1, 1 * S)
    assert LEAST_SAMPLES * parting.apart.sample_ns >= EVIDENCE_S * S
    assert keys(world) == [False, True]
    had = len(quick.had), len(slow.had)
    go_on(world, 200)
    assert len(quick.had) > had[0]
    assert len(slow.had) > had[1]
    assert len(world.parted) == 1
    assert keys(world) == [False, True]


def test_before_there_is_evidence_nobody_parts(world: World) -> None:
    world.sample_ns, world.shared_ns = {1: int(EVIDENCE_S * S / 100)}, 1 * MS
    begin(world, 0, 0), begin(world, 1, 1)
    samples = 0
    while not world.parted:
        lanes = [lane for s in world.table.streams.values() for lane in s.lanes.values() if lane.key[1] == 1]
        samples = int(lanes[0].spent.samples)
        go_on(world, 1)
    assert 100 <= samples < 100 + 2 * 16


def test_the_pipelines_of_one_user_stay_together(world: World) -> None:
    begin(world, 0, 0), begin(world, 1, 0)
    go_on(world, 100)
    assert not world.parted
    assert keys(world) == [False]


def test_jobs_of_a_slow_pipeline_part_together_with_absent_ranks(world: World) -> None:
    begin(world, 0, 0), begin(world, 1, 1), begin(world, 1, 1), begin(world, 1, 1, world_size=2)
    go_on(world, 2 * LEAST_SAMPLES)
    (parting,) = world.parted
    assert len(parting.jobs) == 3
    assert keys(world) == [False, True]
    world.settle(20)


def test_slow_pipelines_of_two_users_part_from_all_others(world: World) -> None:
    begin(world, 0, 0), begin(world, 1, 1), begin(world, 1, 2)
    go_on(world, 2 * LEAST_SAMPLES)
    assert keys(world) == [False, True, True]
    world.settle(20)


# -- how the workers are shared out -----------------------------------------------------------------------


class Pool:
    """Workers whose chunks take their time, and jobs that read at once what they are told."""

    def __init__(self, workers: int, row_ns: dict[int, int]) -> None:
        self.scheduler = ByHand()
        self.row_ns = row_ns
        self.now_ns = 0
        self.made = dict.fromkeys(row_ns, 0)
        self.spent_ns = dict.fromkeys(row_ns, 0)
        self.running: list[tuple[int, int, Fill, int]] = []  # (end, worker, task, how long it takes)
        self.queued: dict[int, list[Fill]] = {worker: [] for worker in range(workers)}
        for stream in row_ns:
            self.scheduler.add_stream(stream, f"key{stream}", "source", 10**9, lambda p: p, 0)
            self.scheduler.add_lane(stream, Lane(stream, ("digest", stream), 512, 0))
            line = BatchLine(10**9, BatchShape(64), 0, 0)
            self.scheduler.add_cursor(stream, Cursor(stream, stream, stream, line, 512, 0, 0, present=False))
            self.do(self.scheduler.present(stream))
        for worker in range(workers):
            self.do(self.scheduler.up(worker))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Submit):
                self.queued[action.worker].append(action.fill)
                if len(self.queued[action.worker]) == 1:
                    self._start(action.worker)
            elif isinstance(action, Announce) and action.cursor in self.row_ns:
                self.do(self.scheduler.release(action.cursor, action.upto))

    def _start(self, worker: int) -> None:
        fill = self.queued[worker][0]
        took_ns = fill.count * self.row_ns[fill.stream]
        heapq.heappush(self.running, (self.now_ns + took_ns, worker, fill, took_ns))

    def go(self, seconds: float) -> None:
        while self.running and self.running[0][0] <= seconds * S:
            self.step()

    def step(self) -> None:
        """A chunk is done."""
        self.now_ns, worker, fill, took_ns = heapq.heappop(self.running)
        self.made[fill.stream] += fill.count
        self.spent_ns[fill.stream] += took_ns
        self.queued[worker].pop(0)
        if self.queued[worker]:
            self._start(worker)
        self.do(self.scheduler.made(worker, fill.task, (), Took(took_ns)))


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("row_ns", [50 * MS, 1 * S, 5 * S])
def test_a_slow_and_a_fast_stream_have_workers_for_equal_time(workers: int, row_ns: int) -> None:
    pool = Pool(workers, {1: row_ns, 2: 5 * MS})
    pool.go(200.0)
    assert 0.42 < pool.spent_ns[2] / (workers * 200.0 * S) < 0.58
    assert pool.spent_ns[1] + pool.spent_ns[2] > 0.95 * workers * 200.0 * S


def test_a_stream_that_wants_little_leaves_the_rest_to_others() -> None:
    pool = Pool(2, {1: 1 * S, 2: 5 * MS})
    pool.scheduler.add_cursor(2, Cursor(9, 2, 9, BatchLine(10**9, BatchShape(64), 0, 0), 512, 0, 0))  # reads nothing
    pool.go(100.0)
    assert 512 - 16 < pool.made[2] <= 512
    assert pool.made[1] > 190


def test_a_stream_does_not_pay_for_a_worker_stopped_once() -> None:
    pool = Pool(1, {1: 5 * MS, 2: 5 * MS})
    pool.go(10.0)
    pool.row_ns[1] = 20 * S
    while pool.running[0][3] < S:
        pool.step()
    pool.row_ns[1] = 5 * MS
    pool.step()
    pool.spent_ns[1] = 0
    pool.go(pool.now_ns / S + 4.0)
    assert pool.spent_ns[1] > 1 * S
