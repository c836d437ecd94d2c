"""The early start: first batches at once, little made twice, shared for ever; and every way in which that can fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from prepserver.pipeline.batches import BatchLine, BatchShape
from prepserver.schedule.actions import GoesAlone
from prepserver.schedule.early import ALLOWANCE, StreamWait, allowance, look
from prepserver.schedule.join import Place
from prepserver.schedule.records import Cursor, Lane
from prepserver.schedule.stream import Stream
from tests.support.schedule_world import Ask, Client, World
from tests.support.scheduling import SPEC

N, BLOCK = 640, 160
CHUNK = 8


class Pair(World):
    """A job in the middle of a block, and one that begins early beside it."""

    def __init__(
        self, at: int = 60, *, batch_size: int = 16, first_batch_size: int = 16, pipeline: int = 0, ring: int = 32,
        world_size: int = 1, patience_s: float = 1000.0,
    ) -> None:  # fmt: skip
        super().__init__(CHUNK, N, BLOCK)
        self.credit: defaultdict[int, int] = defaultdict(int)
        for _ in range(2):
            self.worker_up()
        self.first = self.begin(first_batch_size, ring=ring)
        while self.first.session.released_upto < at:
            self.step()
        self.made_before = self.rows_made
        self.late = self.begin(batch_size, pipeline, ring, world_size, patience_s)

    def begin(
        self, batch_size: int, pipeline: int = 0, ring: int = 64, world_size: int = 1, wait_s: float = 1e4
    ) -> Client:
        needed = 2 * batch_size * world_size
        ask = Ask("key", pipeline, pipeline, join_wait_s=wait_s)
        shape = BatchShape(batch_size, False, 0, world_size)
        joined = self.join(ask, shape, max(0, ring - needed), 0, 1.0, "detach")
        assert joined is not None
        self.where, self.job = joined
        return next(c for c in self.clients.values() if c.job == self.job)

    def step(self, *clients: Client) -> None:
        """The workers make all that they may; then every job that has one takes a batch."""
        self.work()
        for client in clients or tuple(self.clients.values()):
            if self.pick_up(client):
                self.give_back(client, 0)

    def work(self) -> None:
        for worker in list(self.workers):
            while self.workers[worker]:
                self.finish(worker)

    def at_equal_speed(self, count: int) -> None:
        """Every job takes so many rows, if it can; what it could not take is past."""
        for _ in range(count // 4):
            self.work()
            for client in self.clients.values():
                stream = self.table.streams[client.stream]
                whole = stream.cursors[client.cursor].round_rows  # a rank's batch is of so many rows of its job
                credit = min(self.credit[client.cursor] + 4, whole)
                if credit == whole and self.pick_up(client):
                    self.give_back(client, 0)
                    credit = 0
                self.credit[client.cursor] = credit

    def until(self, done: Callable[[], bool], *clients: Client) -> None:
        for _ in range(2 * N):
            if done():
                return
            self.step(*clients)
        raise AssertionError(self._stand())


def rows(client: Client) -> list[int]:
    return [p for batch in client.had for p in range(batch.start, batch.stop)]


@pytest.mark.parametrize(("n", "batch", "most"), [(1_281_167, 256, 19968), (16384, 32, 256), (16384, 512, 1024)])
def test_an_early_start_may_make_a_small_part_of_an_epoch(n: int, batch: int, most: int) -> None:
    """That part is whole rounds."""
    assert allowance(n, batch) == most
    assert most % batch == 0


def test_an_epoch_of_two_rounds_or_less_allows_no_early_start() -> None:
    assert allowance(100, 50) == 0
    assert allowance(101, 50) == 100


def test_first_batches_come_while_the_shared_stream_is_far_away() -> None:
    world = Pair()
    assert world.where == Place(None, None, BLOCK, BLOCK, into=world.first.stream)
    world.until(lambda: len(world.late.had) == 2)
    assert world.table.streams[world.first.stream].head < BLOCK
    assert len(world.streams) == 2


def test_at_its_cap_an_early_stream_rests_and_costs_nothing() -> None:
    world = Pair()
    world.until(lambda: len(world.late.had) == 2)
    made = world.table.streams[world.late.stream].rows_filled
    assert made == allowance(N, 16) == 32
    for _ in range(3):
        world.step(world.late)
    assert world.table.streams[world.late.stream].rows_filled == made


@pytest.mark.parametrize("at", [1, 40, 96])
@pytest.mark.parametrize(
    ("batch_size", "first_batch_size", "world_size"), [(16, 16, 1), (8, 16, 1), (16, 4, 1), (8, 8, 2)]
)
@pytest.mark.parametrize("pipeline", [0, 1])
def test_at_equal_speed_little_is_made_twice_and_both_share(
    at: int, batch_size: int, first_batch_size: int, world_size: int, pipeline: int
) -> None:
    """A whole epoch of the late job: exactly once, and one pass of the two made but for the allowance."""
    world = Pair(at, batch_size=batch_size, first_batch_size=first_batch_size, pipeline=pipeline, world_size=world_size)
    for client in list(world.clients.values()):
        if not client.present:
            world.present(client.cursor)
    assert world.where.into is not None
    late = [c for c in world.clients.values() if c.job == world.job]
    while min(c.session.released_upto for c in late) < BLOCK + N:
        world.at_equal_speed(20)
    assert not world.alone
    assert len(world.joined) == 1
    assert len(world.streams) == 1
    assert sorted(p for c in late for p in rows(c) if p < BLOCK + N) == list(range(BLOCK, BLOCK + N))
    (stream,) = world.table.streams.values()
    allowed = max(N // ALLOWANCE, 2 * batch_size * world_size)
    assert stream.rows_filled == world.rows_made <= stream.head + allowed + CHUNK


def test_a_moved_job_is_told_once_and_reads_on_without_a_gap() -> None:
    world = Pair()
    world.until(lambda: len(world.joined) == 1)
    assert world.late.lane == world.first.lane
    world.until(lambda: len(rows(world.late)) == N)
    assert rows(world.late) == list(range(BLOCK, BLOCK + N))


def test_another_pipelines_lane_goes_along_with_its_ring() -> None:
    world = Pair(pipeline=1)
    lane = world.late.lane
    world.until(lambda: len(world.joined) == 1)
    assert world.late.lane == lane != world.first.lane
    assert world.late.stream == world.first.stream
    world.until(lambda: len(rows(world.late)) == N)
    assert rows(world.late) == list(range(BLOCK, BLOCK + N))


def test_a_batch_too_large_for_the_other_ring_stays_alone() -> None:
    world = Pair(batch_size=40, ring=64)
    assert world.where.into is None


def test_when_the_last_job_there_leaves_the_early_one_goes_on() -> None:
    world = Pair()
    world.until(lambda: len(world.late.had) == 2)
    world.leave(world.first.cursor)
    assert world.alone == ["the stream that it waited for is gone"]
    world.until(lambda: len(rows(world.late)) == N)


def test_when_the_jobs_there_stop_the_early_one_stops_waiting() -> None:
    """It waits for so long and no longer."""
    world = Pair(patience_s=3000.0)
    world.until(lambda: len(world.late.had) == 2)
    world.wait(0.0)
    world.wait(6000.0)
    assert not world.alone
    world.wait(1.0)
    assert world.alone == ["the stream that it waited for did not arrive in time"]
    world.until(lambda: len(rows(world.late)) == N, world.late)
    assert len(world.first.had) < 10


def test_a_job_that_may_not_wait_does_not_wait_for_an_early_one() -> None:
    world = Pair()
    impatient = world.begin(16, wait_s=0.0)
    assert world.where.stream is None
    world.until(lambda: len(rows(impatient)) == N, impatient)


def test_the_less_patient_of_two_early_jobs_ends_their_wait() -> None:
    world = Pair(patience_s=3000.0)
    second = world.begin(16, wait_s=500.0)
    assert second.stream == world.late.stream
    world.until(lambda: len(world.late.had) == len(second.had) == 2)
    world.wait(0.0)
    world.wait(1000.0)
    assert not world.alone
    world.wait(1.0)
    assert world.alone == ["the stream that it waited for did not arrive in time"]


def test_a_job_that_reads_on_is_not_said_to_wait() -> None:
    world = Pair(patience_s=3000.0)
    for _ in range(4):
        world.wait(6001.0)  # nothing read of what there is: that is its own affair
    assert not world.alone


def test_a_head_that_jumps_past_lets_the_early_stream_go_alone() -> None:
    world = Pair()
    ask = Ask("key", position=BLOCK + 100, join_wait_s=1e4, early=False)
    joined = world.join(ask, BatchShape(16, False, 0, 1), 0, 0, 1.0)
    assert joined is not None
    assert joined[0].stream == world.first.stream
    world.until(lambda: len(world.late.had) == 2)
    world.leave(world.first.cursor)  # now nobody needs the rows before
    world.work()
    assert world.alone == ["the stream that it waited for has gone past"]
    world.until(lambda: len(rows(world.late)) == N)


def test_an_absent_rank_does_not_come_between_the_others() -> None:
    world = Pair(batch_size=8, world_size=2)
    world.until(lambda: bool(world.alone))
    assert world.alone == ["its jobs were not ready to join when the other stream came by"]
    absent = next(c for c in world.clients.values() if not c.present)
    world.present(absent.cursor)
    world.until(lambda: len(rows(absent)) >= N // 2)


def test_a_job_that_stops_where_it_began_has_usual_patience() -> None:
    """It holds the others back no longer than any other job."""
    world = Pair(pipeline=1)
    while world.first.session.released_upto < N:
        world.step(world.first)
        world.wait(0.2)
    assert len(rows(world.late)) < N
    world.until(lambda: len(rows(world.late)) == N)
    start = rows(world.late)[0]
    assert rows(world.late) == list(range(start, start + N))


class ComeBack(World):
    """Two jobs of one stream that come back after a restart, the foremost one first; so many rows lie between them."""

    def __init__(self, between: int, *, pipeline: int = 0, owner: int = 0, wait_s: float = 30.0) -> None:
        super().__init__(CHUNK, N, BLOCK)
        self.worker_up()
        self.ahead = self.resume(200, 16, 0, 0, 30.0)
        self.work()
        self.behind = self.resume(200 - between, 8, pipeline, owner, wait_s)

    def resume(self, position: int, batch_size: int, pipeline: int, owner: int, wait_s: float) -> Client:
        ask = Ask("key", pipeline, owner, position=position, join_wait_s=wait_s)
        joined = self.join(ask, BatchShape(batch_size, False, 0, 1), 64 - 2 * batch_size, 0)
        assert joined is not None
        return next(c for c in self.clients.values() if c.job == joined[1])

    def work(self) -> None:
        for worker in list(self.workers):
            while self.workers[worker]:
                self.finish(worker)

    def go_on(self, *clients: Client) -> None:
        for _ in range(2 * N // 8):
            self.work()
            for client in clients:
                if self.pick_up(client):
                    self.give_back(client, 0)


@pytest.mark.parametrize("between", [1, 20, 64])
@pytest.mark.parametrize("pipeline", [0, 1])
def test_jobs_that_come_back_share_again_in_any_order(between: int, pipeline: int) -> None:
    world = ComeBack(between, pipeline=pipeline)
    assert len(world.streams) == 2
    world.go_on(world.ahead, world.behind)
    assert len(world.joined) == len(world.streams) == 1
    assert not world.alone
    for client, first in ((world.ahead, 200), (world.behind, 200 - between)):
        assert rows(client)[: N - 200] == list(range(first, first + N - 200))


class StartTogether(ComeBack):
    """Two jobs that start together: when the second one attaches, the first has given back two batches."""

    def __init__(self, *, pipeline: int = 0, owner: int = 0, waits_s: tuple[float, float] = (30.0, 30.0)) -> None:
        World.__init__(self, CHUNK, N, BLOCK)
        self.worker_up()
        self.ahead = self.start(0, 0, waits_s[0])
        for _ in range(2):
            self.work()
            assert self.pick_up(self.ahead)
            self.give_back(self.ahead, 0)
        self.behind = self.start(pipeline, owner, waits_s[1])

    def start(self, pipeline: int, owner: int, wait_s: float) -> Client:
        joined = self.join(Ask("key", pipeline, owner, join_wait_s=wait_s), BatchShape(8, False, 0, 1), 48, 0, 50.0)
        assert joined is not None
        return next(c for c in self.clients.values() if c.job == joined[1])


@pytest.mark.parametrize("pipeline", [0, 1])
def test_jobs_that_start_together_share_from_the_start(pipeline: int) -> None:
    world = StartTogether(pipeline=pipeline)
    assert world.coordinator.waits_for == {world.ahead.stream: world.behind.stream}
    world.go_on(world.ahead, world.behind)
    assert len(world.joined) == len(world.streams) == 1
    assert not world.alone
    for client in (world.ahead, world.behind):
        assert rows(client)[:N] == list(range(N))


@pytest.mark.parametrize("more", [{"owner": 1}, {"waits_s": (0.0, 30.0)}])
def test_a_job_that_no_stream_waits_for_starts_early(more: dict[str, Any]) -> None:
    world = StartTogether(**more)
    assert world.coordinator.waits_for == {world.behind.stream: world.ahead.stream}
    world.go_on(world.ahead, world.behind)
    assert len(world.joined) == len(world.streams) == 1
    assert rows(world.behind)[:N] == list(range(BLOCK, BLOCK + N))


def test_a_third_job_makes_nobody_wait_again() -> None:
    world = StartTogether()
    for _ in range(2):
        world.work()
        assert world.pick_up(world.behind)
        world.give_back(world.behind, 0)
    third = world.start(0, 0, 30.0)
    world.go_on(world.ahead, world.behind, third)
    assert len(world.streams) == 1
    assert not world.alone


@pytest.mark.parametrize("more", [{"between": 65}, {"between": 20, "owner": 1}, {"between": 20, "wait_s": 0.0}])
def test_nobody_waits_for_one_far_behind_or_of_another_user(more: dict[str, Any]) -> None:
    world = ComeBack(**more)
    world.go_on(world.ahead)
    assert len(world.streams) == 2
    assert len(rows(world.ahead)) >= N - 200


def test_a_job_waits_ten_seconds_for_one_that_stands_still() -> None:
    world = ComeBack(64)
    world.go_on(world.ahead)
    had = len(rows(world.ahead))
    world.wait(0.0)
    world.wait(10.0)
    assert not world.alone
    world.wait(0.1)
    assert world.alone == ["the stream that it waited for did not arrive in time"]
    world.go_on(world.ahead)
    assert len(rows(world.ahead)) > had


class RanksComeBack(ComeBack):
    """As before, but the foremost job has two ranks, of which one attaches later than the job behind."""

    def __init__(self, owner: int = 0) -> None:
        super().__init__(20)
        for client in list(self.clients.values()):
            self.leave(client.cursor)
        ask = Ask("key", position=200, join_wait_s=30.0)
        joined = self.join(ask, BatchShape(8, False, 0, 2), 32, 0)
        assert joined is not None
        self.ranks = [client for client in self.clients.values() if client.job == joined[1]]
        self.work()
        self.behind = self.resume(180, 8, 0, 0, 30.0)
        if owner:
            self.resume(188, 8, 0, owner, 30.0)
        self.go_on(*(client for client in self.clients.values() if client not in self.ranks))


def test_a_stream_waits_for_absent_ranks_of_the_one_ahead() -> None:
    world = RanksComeBack()
    assert not world.alone
    assert len(world.streams) == 2
    world.present(next(client.cursor for client in world.ranks if not client.present))
    world.go_on(world.behind, *world.ranks)
    assert len(world.joined) == len(world.streams) == 1
    assert not world.alone
    assert rows(world.behind)[: N - 200] == list(range(180, N - 20))
    assert sorted(rows(world.ranks[0]) + rows(world.ranks[1]))[: N - 200] == list(range(200, N))


def test_it_waits_ten_seconds_for_absent_ranks() -> None:
    world = RanksComeBack()
    had = len(rows(world.behind))
    world.wait(0.0)
    world.wait(10.0)
    assert not world.alone
    world.wait(0.1)
    assert world.alone == ["its jobs were not ready to join in time"]
    world.go_on(world.behind)
    assert len(rows(world.behind)) > had


def test_another_users_job_does_not_wait_for_absent_ranks() -> None:
    world = RanksComeBack(owner=1)
    assert world.alone == ["its jobs were not ready to join when the other stream came by"]


def test_nobody_waits_for_a_ring_that_batches_do_not_fit() -> None:
    world = ComeBack(20)
    large = world.join(Ask("key", 1, position=170, join_wait_s=30.0), BatchShape(80, False, 0, 1), 0, 0)
    assert large is not None
    assert set(world.coordinator.waits_for) == {world.ahead.stream}
    assert not world.alone


def standing(id: int, *, batch: int, rows: int) -> Stream:
    """A stream at position 64 with one job; each has a pipeline of its own."""
    made = Stream(id, "key", "source", N, lambda p: p, 64, SPEC)
    made.lanes[id] = Lane(id, (f"p{id}", 0), rows, 0)
    made.cursors[id] = Cursor(id, id, id, BatchLine(N, BatchShape(batch), 0, 64), rows, 64, 64)
    return made


@pytest.mark.parametrize(("batches", "rows"), [((4, 16), (16, 64)), ((16, 4), (64, 16))])
def test_a_ring_too_small_for_the_others_batches_stays_alone(batches: tuple[int, int], rows: tuple[int, int]) -> None:
    stream, into = (standing(k, batch=batches[k], rows=rows[k]) for k in range(2))
    found = look(StreamWait(0, 1, 0, 1.0), stream, into)
    assert isinstance(found, GoesAlone)
    assert found.why.startswith("their rings are too small")
