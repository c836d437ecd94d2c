"""Who holds whom back: jobs of some speed, a pool of some speed, and clients that say how long they waited."""

from __future__ import annotations

import pytest

from prepserver.pipeline.batches import BatchLine, BatchShape
from prepserver.schedule.actions import MakeRing
from prepserver.schedule.events import Event, RingRefused
from prepserver.schedule.lag import PATIENCE_S, STILL_S, holding_back
from prepserver.schedule.records import Cursor, Lane
from prepserver.schedule.stream import Stream
from tests.support.scheduling import SPEC
from tests.support.timed_world import BATCH, BLOCK, RING, N, Timed


@pytest.mark.parametrize(("slow", "seconds"), [(0.0, 6.0), (100.0, 20.0), (350.0, 60.0)])
def test_a_slower_job_is_left_behind(slow: float, seconds: float) -> None:
    """At once if it has stopped; at two thirds of the others' speed it costs them a third of their time."""
    world = Timed()
    jobs = world.begin(slow), world.begin(550.0)
    world.go(seconds)
    assert [parting.jobs for parting in world.parted[:1]] == [(jobs[0].job,)]


def test_a_job_that_stops_after_a_batch_costs_its_patience_only() -> None:
    world = Timed()
    stops, other = world.begin(500.0), world.begin(500.0)
    world.go(20.0)
    world.rows_per_s[stops.cursor] = 0.0
    had = len(other.had)
    world.go(RING / 500.0 + 2 * PATIENCE_S + 1.0)
    assert [parting.jobs for parting in world.parted] == [(stops.job,)]
    world.go(30.0)
    assert len(other.had) > had + RING // BATCH + 50
    assert len(world.parted) == 1
    assert not world.joined  # nor does it come back to the one that has stopped


@pytest.mark.parametrize("pipeline", [0, 1])
def test_a_job_that_stops_before_another_joins_is_left_behind(pipeline: int) -> None:
    """Time between the two passes, but not while the job makes no progress."""
    world = Timed()
    stops = world.begin(200.0)
    world.go(5.0)
    late = world.begin(200.0, pipeline=pipeline)
    world.until_joined()
    world.rows_per_s[stops.cursor] = 0.0
    had = len(late.had)
    world.go(STILL_S + 2 * PATIENCE_S + RING / 200.0)
    assert [parting.jobs for parting in world.parted] == [(stops.job,)]
    world.go(10.0)
    assert len(late.had) > had + RING // BATCH


@pytest.mark.parametrize("pipeline", [0, 1])
@pytest.mark.parametrize("late_stops", [False, True])
def test_rows_a_job_brought_along_stay_when_others_part(pipeline: int, late_stops: bool) -> None:
    """It has not read them yet when the stream that it came to, short of its place, gets new rings."""
    world = Timed()
    stops = world.begin(500.0)
    quick = world.begin(500.0)
    world.go(0.5)
    late = world.begin(500.0, pipeline=pipeline)
    while not late.had:
        world.go(0.1)
    world.rows_per_s[late.cursor] = 0.0
    assert late.told == late.session.released_upto + BATCH
    world.until_joined()
    world.rows_per_s[stops.cursor] = 0.0
    while not world.parted:
        world.go(0.1)
    assert world.table.streams[quick.stream].head < late.told
    if not late_stops:
        world.rows_per_s[late.cursor] = 500.0
    world.go(30.0)
    assert quick.session.released_upto > N // 2


def test_waits_of_a_client_elsewhere_are_held_against_nobody() -> None:
    """It says the sum of its life, also where it attaches again."""
    world = Timed()
    first = world.begin(0.0)
    world.begin(500.0)
    world.go(2.2)
    again = world.begin(0.0)
    assert again.stream == first.stream
    again.waited_s = 500.0
    world.go(0.3)
    world.rows_per_s[again.cursor] = 500.0
    world.go(0.3)
    world.rows_per_s[first.cursor] = 500.0
    world.go(30.0)
    assert len(again.had) > 10
    assert not world.parted


@pytest.mark.parametrize("lag", ["wait", "auto", "detach"])
def test_a_job_that_stops_never_stops_those_of_other_users(lag: str) -> None:
    """Also with "wait", and with "auto" while all workers are busy."""
    world = Timed(600.0)
    stops, other = world.begin(500.0, lag=lag), world.begin(500.0, lag=lag, owner=1)
    world.go(10.0)
    world.rows_per_s[stops.cursor] = 0.0
    had = len(other.had)
    world.go(RING / 500.0 + 4 * PATIENCE_S + 10.0)
    assert [parting.jobs for parting in world.parted] == [(stops.job,)]
    assert len(other.had) > had + RING // BATCH + 5


@pytest.mark.parametrize("barred", [False, True])
def test_a_worker_that_cannot_read_the_data_is_not_idle(barred: bool) -> None:
    """With "auto", a job parts while workers could make rows for it."""
    world = Timed()
    stops, _ = world.begin(500.0, lag="auto"), world.begin(500.0, lag="auto")
    world.go(10.0)
    world.rows_per_s[stops.cursor] = 0.0
    for worker in world.workers if barred else ():
        world.coordinator.workers.bar(worker, stops.stream, "no such folder", world.now_s)
    world.go(RING / 500.0 + 3 * PATIENCE_S)
    assert bool(world.parted) != barred


def test_many_jobs_that_stop_at_once_cost_the_patience_of_few() -> None:
    """They cost another user no more than that."""
    world = Timed()
    other = world.begin(500.0, owner=1)
    stopped = [world.begin(500.0, lag="wait", pipeline=k % 2) for k in range(6)]
    while len(world.streams) > 1:
        world.go(0.1)
    for client in stopped:
        world.rows_per_s[client.cursor] = 0.0
    had = len(other.had)
    world.go(RING / 500.0 + 4 * PATIENCE_S + 4.0)
    assert len(world.parted) > 1
    assert len(other.had) > had + RING // BATCH


@pytest.mark.parametrize("waiting", [0, 2])
def test_jobs_that_stop_at_once_part_at_once(waiting: int) -> None:
    """As in notebooks that are open: the others wait once, and get one new ring. Those that may not part stay."""
    world = Timed()
    goes_on = world.begin(500.0)
    stopped = [world.begin(500.0, lag="wait" if k < waiting else "detach", pipeline=k % 2) for k in range(6)]
    while len(world.streams) > 1:
        world.go(0.1)
    for client in stopped:
        world.rows_per_s[client.cursor] = 0.0
    had = len(goes_on.had)
    world.go(RING / 500.0 + 2 * PATIENCE_S + 2.0)
    jobs = {client.job for client in stopped[waiting:]}
    parted = [{*parting.jobs} for parting in world.parted]
    assert parted == ([jobs] if not waiting else []), "the first ones wait, and so nobody parts"
    if not waiting:
        assert len(goes_on.had) > had + RING // BATCH


class Short(Timed):
    """There is memory for one ring more than there are."""

    most = 1 << 30

    def _make_ring(self, asked: MakeRing) -> Event:
        if len(self.lanes) + len(self.rings) >= self.most:
            return RingRefused("memory", "no room")
        return super()._make_ring(asked)


def test_where_memory_is_short_jobs_part_one_by_one() -> None:
    world = Short()
    goes_on = world.begin(500.0)
    stopped = [world.begin(500.0, pipeline=k) for k in range(1, 5)]
    while len(world.streams) > 1:
        world.go(0.1)
    for client in stopped:
        world.rows_per_s[client.cursor] = 0.0
    world.most = len(world.lanes) + 1
    had = len(goes_on.had)
    world.go(RING / 500.0 + 4 * 2 * PATIENCE_S + 8.0)
    assert len(goes_on.had) > had + RING // BATCH
    assert any(len(parting.jobs) == 1 for parting in world.parted)


def test_a_user_waits_for_its_own_jobs_as_these_say() -> None:
    world = Timed()
    stops, other = world.begin(0.0, lag="wait"), world.begin(500.0, lag="wait")
    world.go(60.0)
    assert not world.parted
    assert len(other.had) <= RING // BATCH
    assert stops.stream == other.stream


def test_absent_ranks_stop_no_job_of_another_user() -> None:
    """Their job continues where they are to begin, and its own ranks wait for them."""
    world = Timed()
    other = world.begin(500.0, owner=1)
    while world.table.streams[other.stream].head < BLOCK - 300:
        world.go(0.05)
    here = world.begin(500.0, batch=BATCH // 4, ranks=2, lag="wait")
    (absent,) = (c for c in world.clients.values() if c.job == here.job and not c.present)
    assert here.stream == other.stream
    had = len(other.had)
    world.go(RING / 500.0 + 4 * PATIENCE_S + 10.0)
    assert len(other.had) > had + RING // BATCH
    assert [(p.jobs, p.strangers) for p in world.parted] == [((here.job,), True)]
    world.rows_per_s[absent.cursor] = 500.0
    world.present(absent.cursor)
    world.go(10.0)
    assert absent.had[0].start == here.had[0].stop
    assert len(absent.had) > 10
    assert len(here.had) > 10


def test_an_absent_rank_is_promised_no_row_of_a_ring_it_lacked() -> None:
    """Where others part and it stays, its place is given up."""
    world = Timed()
    other, stops = world.begin(500.0, owner=1), world.begin(500.0)
    world.until_joined()
    stream = world.table.streams[other.stream]
    start = stream.next_start(stream.head + RING)
    while stream.low < start - 3 * RING // 4:
        world.go(0.05)
    pair = world.begin(500.0, batch=BATCH // 4, ranks=2)
    (absent,) = (c for c in world.clients.values() if c.job == pair.job and not c.present)
    assert pair.lane == stops.lane
    world.rows_per_s[stops.cursor] = 0.0
    while not world.parted:
        world.go(0.1)
    assert (stops.job,) in {parting.jobs for parting in world.parted}
    if absent.cursor in world.clients:
        world.rows_per_s[absent.cursor] = 500.0
        world.present(absent.cursor)
    had = len(other.had)
    world.go(10.0)
    assert len(other.had) > had + 2 * RING // BATCH
    assert absent.cursor not in world.clients


@pytest.mark.parametrize(("owner", "goes_on"), [(0, False), (1, True)])
def test_an_early_job_waits_for_no_stopped_job_of_another_user(owner: int, goes_on: bool) -> None:
    world = Timed()
    stops = world.begin(500.0, owner=0)
    world.go(2.0)
    early = world.begin(500.0, owner=owner)
    world.rows_per_s[stops.cursor] = 0.0
    world.go(2 * STILL_S + 10.0)
    assert (len(early.had) > 2 * RING // BATCH) == goes_on
    assert bool(world.alone) == goes_on


def test_a_job_that_holds_no_row_holds_nobody_back() -> None:
    """A worker that does not die fills the window."""
    stream = Stream(1, "key", "source", N, lambda p: p, 8, SPEC)
    stream.lanes[1] = Lane(1, ("digest", 0), 8, 0)
    for id in (1, 2):
        stream.cursors[id] = Cursor(id, 1, id, BatchLine(N, BatchShape(4), 0, 8), 100, 8, 8)
    stream.chunks.started(0)
    assert stream.limit == stream.head
    assert holding_back(stream, 4, is_still=True) == []
