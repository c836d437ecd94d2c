"""A job that loses rows to go with the others: where it is left, and where it comes back."""

from __future__ import annotations

import pytest

from prepclient.session import Shape
from prepserver.schedule.join import Request
from prepserver.schedule.lag import Parting
from tests.support.schedule_world import Client, World

N, BLOCK = 16384, 4096


def begin(world: World, batch: int, lag: str, extra_rows: int = 0) -> Client:
    request = Request("key", ("p0", 0), "cyclic", N, 2 * batch, 0, None, None, 1e4)
    _, group = world.join(request, Shape(batch, False, 0, 1), extra_rows, 0, 500.0, lag)
    return next(c for c in world.clients.values() if c.group == group)


def workers(world: World, count: int) -> list[int]:
    for _ in range(count):
        world.worker_up()
    return sorted(world.workers)


def read(world: World, *clients: Client) -> int:
    """Each takes all that there is; how many batches."""
    taken = 0
    for client in clients:
        while world.pick_up(client):
            world.give_back(client, 0)
            taken += 1
    return taken


def test_nobody_is_left_behind_for_a_worker_that_does_not_die() -> None:
    """That holds even for a job that has used up all its patience."""
    world = World(4, N, BLOCK)
    stuck, works = workers(world, 2)
    loses, other = begin(world, 10, "skip", 24), begin(world, 4, "wait", 36)
    assert loses.lane == other.lane
    world.hang(stuck)  # the rows of its chunk are used by nobody before it is gone
    for _ in range(100):
        if world.workers[works]:
            world.finish(works)
        read(world, loses, other)
    for _ in range(60):
        world.wait(0.2)
    assert not world.parted
    world.stuck_ends(stuck)
    had = len(loses.had)
    for _ in range(100):
        if world.workers[works]:
            world.finish(works)
        read(world, loses, other)
    assert len(loses.had) > had + 10


@pytest.mark.parametrize("place", range(2080, 2208, 16))
def test_returning_to_a_ring_of_two_batches_holds_nothing_lost(place: int) -> None:
    world = World(16, N, BLOCK)
    (works,) = workers(world, 1)
    quick, slow = begin(world, 4, "wait", 608), begin(world, 308, "skip")
    assert quick.lane == slow.lane
    while world.workers[works] or read(world, quick):
        if world.workers[works]:
            world.finish(works)
    world._part(Parting(quick.stream, (slow.group,), skip=True))
    stream = world.scheduler.streams[quick.stream]
    while stream.watermark < place:
        world.finish(works)
        read(world, quick)
    read(world, slow)
    assert slow.cursor in stream.cursors
    for _ in range(200):
        if world.workers[works]:
            world.finish(works)
        elif not read(world, quick, slow):
            break
    assert len(slow.had) > 10
