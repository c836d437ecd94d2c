"""Chunks of a row group go to the worker that keeps it decoded, unless that would take longer."""

from __future__ import annotations

import pytest

from prepserver.order import make_order
from prepserver.pipeline.batches import Batching, BatchLine, BatchShape
from prepserver.protocol.messages import Shuffle
from prepserver.schedule.actions import Action, Announce, Submit
from prepserver.schedule.events import WorkerRetires
from prepserver.schedule.records import Chunk, Cursor, Lane, Took
from prepserver.schedule.row_groups import DECODES_WAITED, RUN_MOST, RowGroups
from prepserver.schedule.twice import TWICE_S
from tests.support.consistency import validate
from tests.support.schedule_world import Ask, World
from tests.support.scheduling import ByHand

N = 48
ROW_NS, DECODE_NS = 1_000, 10_000_000


def scheduler(workers: int = 2, rows: int = 24, group: int = 8, kept: int = N, chunk: int = 4, n: int = N) -> ByHand:
    """A stream that reads along groups of 8 rows in chunks of 4, and a job on it; nothing is decoded yet."""
    s = ByHand(chunk)
    order = make_order("none", n, 0)
    s.add_stream(1, "key", "source", n, order.next_start, 0)
    stream = s.streams[1]
    stream.groups = RowGroups(order.indices, range(group, n + 1, group), kept)
    stream.groups.decoded(DECODE_NS)
    s.add_lane(1, Lane(10, ("digest", 0), rows, 0))
    stream._pace = (10,), ROW_NS
    for worker in range(1, workers + 1):
        s.up(worker)
    s.add_cursor(1, Cursor(5, 10, 5, BatchLine(n, BatchShape(4), 0, 0), 1000, 0, 0, present=False))
    return s


def submits(actions: list[Action]) -> list[tuple[int, int]]:
    """(worker, position) of what is given out."""
    return [(a.worker, a.fill.position) for a in actions if isinstance(a, Submit)]


def aside(s: ByHand) -> list[tuple[int, int]]:
    """(position, count) of what waits for a worker."""
    groups = s.streams[1].groups
    assert groups is not None
    return [(chunk.position, chunk.count) for chunks in groups.aside.values() for chunk in chunks]


def made(s: ByHand, worker: int, wall_ns: int = 0) -> list[tuple[int, int]]:
    """A worker ends its oldest chunk."""
    found = submits(s.made(worker, s.workers.slots[worker].tasks[0], took=Took(wall_ns)))
    validate(s)
    return found


def test_each_worker_gets_the_chunks_of_its_own_groups() -> None:
    s = scheduler()
    assert submits(s.present(5)) == [(1, 0), (2, 8), (1, 4), (2, 12)]
    # the next group belongs to whoever is the first to be free
    assert made(s, 2) == [(2, 16)]
    assert made(s, 1) == []  # the other chunk of that group waits for its worker
    assert aside(s) == [(20, 4)]
    assert made(s, 2) == [(2, 20)]


def test_a_chunk_ends_where_its_row_group_does() -> None:
    s = scheduler(group=3)
    s.present(5)
    assert [task.chunk.count for task in s.workers.tasks.values()] == [3, 3, 3, 3]


@pytest.mark.parametrize("joins", [0, 3, 20])
def test_rows_that_wait_are_cut_when_a_worker_gets_them(joins: int) -> None:
    """One worker idles while the other one makes the first chunk, which has one row: all others have more.

    A lane that joins meanwhile has no rows there yet, and changes nothing.
    """
    n = 8192
    s = scheduler(rows=4096, group=4096, kept=n, chunk=16, n=n)
    stream = s.streams[1]
    stream._pace = None
    actions = s.present(5)
    fills = []
    for action in actions:  # which grows
        if isinstance(action, Submit):
            fills.append(action.fill)
            if len(fills) == joins:
                s.add_lane(1, Lane(11, ("other", 0), 4096, stream.head))
                line = BatchLine(n, BatchShape(4), 0, stream.head)
                s.add_cursor(1, Cursor(6, 11, 6, line, 1000, stream.head, stream.head, present=True))
            decodes = s.workers.tasks[action.fill.task].decodes
            took = Took(ROW_NS * action.fill.count + DECODE_NS * decodes)
            actions += s.made(action.worker, action.fill.task, took=took)
            validate(s)
        elif isinstance(action, Announce) and action.upto < n:
            actions += s.release(action.cursor, action.upto)
    made = sorted((fill.position, fill.count) for fill in fills)
    ends = [position + count for position, count in made]
    assert [position for position, _ in made] == [0, *ends[:-1]]
    assert ends[-1] >= n
    assert len(made) < 200


def test_a_long_run_is_looked_at_in_parts() -> None:
    asked: list[int] = []

    def indices(position: int, count: int) -> list[int]:
        asked.append(count)
        return list(range(position, position + count))

    groups = RowGroups(indices, [10, RUN_MOST * 5], N)
    assert groups.run(0, 1 << 40) == 10
    assert groups.run(10, 1 << 40) == RUN_MOST
    assert groups.run(RUN_MOST * 5 - 3, 2) == 2
    assert max(asked) == RUN_MOST


def test_rows_that_wait_are_in_the_window() -> None:
    s = scheduler(workers=0, rows=8)
    stream = s.streams[1]
    assert stream.groups is not None
    s.add_cursor(1, Cursor(6, 10, 6, BatchLine(N, BatchShape(2), 0, 6), 1000, 6, 6, present=False))
    chunk = stream.next_chunk(2, 2, lambda position: True)
    assert chunk == Chunk(0, 8, (10,))  # as long as possible: it waits
    stream.groups.put_back(stream.split(chunk, 4))
    stream.chunks.made(0)
    assert (aside(s), stream.watermark) == ([(4, 4)], 4)
    s.left(5)
    assert (stream.low, stream.floor, stream.limit) == (6, 4, 12)


def test_a_worker_that_would_idle_for_long_decodes_a_group_again() -> None:
    s = scheduler(rows=8, chunk=2)
    assert submits(s.present(5)) == [(1, 0), (1, 2)]  # the others wait, though a worker is idle
    for foreseen_ns, found in ((DECODES_WAITED * DECODE_NS, []), (DECODES_WAITED * DECODE_NS + 1, [(2, 4), (2, 6)])):
        first, second = s.workers.tasks.values()
        first.foreseen_ns, second.foreseen_ns = foreseen_ns, 0
        assert submits(s.tick(0.0)) == found


@pytest.mark.parametrize("how", ["dies", "hangs", "retires", "is barred", "is late"])
def test_nobody_waits_for_a_worker_that_gets_no_more(how: str) -> None:
    s = scheduler(rows=12, chunk=2)
    assert submits(s.present(5)) == [(1, 0), (2, 8), (1, 2), (2, 10)]
    assert aside(s) == [(4, 4)]
    assert made(s, 2) == []
    match how:
        case "dies":
            found = submits(s.lost(1))
        case "hangs":
            found = submits(s.stuck(1))
        case "retires":
            found = submits(s.handle(WorkerRetires(1), 0.0) + s.tick(0.0))
        case "is barred":
            found = submits(s.failed(1, s.workers.slots[1].tasks[0], elsewhere=True))
        case _:
            s.tick(1.0)
            found = submits(s.tick(1.5 + TWICE_S))
    while s.workers.slots[2].tasks:
        found += made(s, 2)
    assert {(2, 4), (2, 6)} <= set(found)


def test_a_worker_forgets_the_groups_that_it_keeps_no_longer() -> None:
    groups = RowGroups(make_order("none", N, 0).indices, range(8, N + 1, 8), 20)
    assert [groups.given(1, position) for position in (0, 4, 8, 16, 8, 0)] == [False, True, False, False, True, False]
    assert [groups.given(2, position) for position in (0, 0)] == [False, True]
    assert not groups.fresh().given(1, 0)


def test_what_a_decode_takes_follows_the_latest_ones() -> None:
    groups = RowGroups(make_order("none", N, 0).indices, [N], N)
    groups.decoded(1000)
    assert groups.decode_ns == 1000
    groups.decoded(-5)
    assert groups.decode_ns == 750


def test_a_decode_says_nothing_of_what_rows_take() -> None:
    s = scheduler(workers=1)
    s.present(5)
    stream = s.streams[1]
    assert stream.groups is not None
    made(s, 1, 8 * ROW_NS + DECODE_NS)
    assert stream.row_ns((10,)) == ROW_NS
    made(s, 1, 8 * ROW_NS)
    assert stream.row_ns((10,)) == 2 * ROW_NS


def test_a_chunk_set_aside_that_nobody_needs_is_not_made() -> None:
    s = scheduler(rows=8, chunk=2)
    s.present(5)
    stream = s.streams[1]
    assert stream.groups is not None
    assert aside(s) == [(4, 4)]
    s.add_cursor(1, Cursor(6, 10, 6, BatchLine(N, BatchShape(4), 0, 40), 1000, 40, 40, present=False))
    s.left(5)
    assert aside(s) == []
    given = submits(s.present(6))
    while s.workers.tasks:
        for worker in (1, 2):
            if s.workers.slots[worker].tasks:
                given += made(s, worker)
    assert [position for _, position in given] == [40, 42, 44, 46]


@pytest.mark.parametrize(
    ("shuffle", "batching", "along"),
    [
        ("none", "shuffle-batch-repeat", True),
        ("full", "batch-shuffle-repeat", True),
        ("full", "shuffle-batch-repeat", False),
        ("cyclic", "shuffle-batch-repeat", False),
    ],
)
@pytest.mark.parametrize("ends", [(), (8, 24)])
def test_only_orders_that_read_along_the_groups_heed_them(
    shuffle: Shuffle, batching: Batching, along: bool, ends: tuple[int, ...]
) -> None:
    world = World()
    world.row_groups = ends
    assert world.join(Ask("c", 0, 0, shuffle), BatchShape(4, False, 0, 1, batching=batching), 0, 0)
    (stream,) = world.table.streams.values()
    assert (stream.groups is not None) == (along and bool(ends))


def test_jobs_that_part_read_groups_that_nobody_has_decoded() -> None:
    world = World(validates=True)
    world.row_groups = (8, 24)
    world.worker_up()
    for owner in (0, 1):
        assert world.join(Ask("c", 0, owner, "none"), BatchShape(4, False, 0, 1), 0, 0)
    world.go_on_without(1, 12, 300.0)
    assert len({id(stream.groups) for stream in world.table.streams.values()}) == 2
