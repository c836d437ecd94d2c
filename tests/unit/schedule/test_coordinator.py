"""The scheduler's promises one by one; `test_histories` mixes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from prepserver.pipeline.batches import BatchLine, BatchShape
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, encode
from prepserver.protocol.layout import Field
from prepserver.protocol.work import AddLane, AddStream, DropLane, DropStream
from prepserver.schedule.actions import (
    Action,
    Announce,
    End,
    GoesAlone,
    Joined,
    KillWorker,
    MakeRing,
    Move,
    QuarantineSample,
    Say,
    Submit,
)
from prepserver.schedule.bad import BAD_REASONS_TOLD
from prepserver.schedule.chunks import Chunks
from prepserver.schedule.dispatch import SETTLED_CHUNKS, Dispatch
from prepserver.schedule.events import (
    ChunkFailed,
    ChunkMade,
    RankAsks,
    RankLeft,
    RingMade,
    RingRefused,
    WorkerLost,
    WorkerRetires,
    WorkerUp,
)
from prepserver.schedule.lag import Parting
from prepserver.schedule.pace import LEAST_SAMPLES
from prepserver.schedule.parting import NO_ROOM_S, Steps
from prepserver.schedule.records import BadRow, Chunk, Cursor, Lane, Spent, Suspect, Took
from prepserver.schedule.story import Noted, Story
from prepserver.schedule.strikes import CRASH_STRIKES, KILL_STRIKES, QUARANTINES_MOST
from prepserver.schedule.twice import TWICE_S
from prepserver.schedule.workers import BARRED_S, SLOW_NS
from tests.support.consistency import validate
from tests.support.schedule_world import Ask, World
from tests.support.scheduling import ByHand

N = 1000


def scheduler(chunk_rows: int = 4) -> ByHand:
    return ByHand(chunk_rows)


def stream(s: ByHand, id: int = 1, *, rows: int = 16, position: int = 0, lanes: int = 1, n: int = N) -> None:
    """Stream `id` with lanes `10 * id`, ..."""
    s.add_stream(id, f"key{id}", "source", n, lambda p: -(-p // n) * n, position)
    for lane in range(lanes):
        s.add_lane(id, Lane(10 * id + lane, (f"digest{lane}", 0), rows, position))
    # as if a row had been made in no time: chunks are whole ones from the first on
    s.streams[id].took(Chunk(position, 1, tuple(s.streams[id].lanes)), Took())


def cursor(
    s: ByHand, id: int, stream: int = 1, *, batch: int = 4, lane: int | None = None, position: int = 0,
    prefetch: int = 1000, rank: int = 0, world: int = 1, n: int = N, present: bool = True, drop_last: bool = False,
) -> list[Action]:  # fmt: skip
    line = BatchLine(n, BatchShape(batch, drop_last, rank, world), position // n * n, position)
    first = line.peek().start
    lane = 10 * stream if lane is None else lane
    s.add_cursor(stream, Cursor(id, lane, id, line, prefetch, first, first, present=False))
    return s.present(id) if present else []


def submits(actions: list[Action]) -> list[tuple[int, int, int]]:
    """(worker, position, count) of what is given out."""
    return [(a.worker, a.fill.position, a.fill.count) for a in actions if isinstance(a, Submit)]


def told(actions: list[Action]) -> list[tuple[int, int]]:
    return [(a.cursor, a.upto) for a in actions if isinstance(a, Announce)]


def tasks(actions: list[Action]) -> list[int]:
    return [a.fill.task for a in actions if isinstance(a, Submit)]


def test_each_worker_gets_one_chunk_before_any_gets_a_second() -> None:
    s = scheduler()
    stream(s)
    assert s.up(1) == s.up(2) == []
    assert submits(cursor(s, 5)) == [(1, 0, 4), (2, 4, 4), (1, 8, 4), (2, 12, 4)]


@pytest.mark.parametrize(("row_bytes", "count"), [(1, 4), (5 << 20, 3), (16 << 20, 1), (64 << 20, 1)])
def test_a_chunk_has_fewer_rows_where_rows_are_large(row_bytes: int, count: int) -> None:
    s = scheduler()
    s.up(1)
    stream(s)
    large = Lane(19, ("large", 0), 16, 0, fields=(Field("volume", "uint8", [row_bytes]),))
    s.add_lane(1, large)
    s.streams[1].took(Chunk(0, 1, tuple(s.streams[1].lanes)), Took())
    assert submits(cursor(s, 5)) == [(1, 0, count), (1, count, count)]


@pytest.mark.parametrize(("rows", "grown"), [(31, 4), (32, 8), (63, 8), (64, 16)])
def test_chunks_grow_once_a_stream_runs_as_far_as_its_ring_holds(rows: int, grown: int) -> None:
    s = scheduler()
    stream(s, rows=rows)
    s.up(1)
    given = submits(cursor(s, 5, batch=2))
    done = 0
    for _ in range(SETTLED_CHUNKS):
        assert {count for _, _, count in given} == {4}
        _, position, count = given.pop(0)
        done += count
        task = next(iter(s.workers.slots[1].tasks))
        given += submits(s.made(1, task, []))
        given += submits(s.release(5, done))
    while given[0][1] < done + 8:  # what was given out before
        _, position, count = given.pop(0)
        given += submits(s.made(1, s.workers.slots[1].tasks[0], []))
        given += submits(s.release(5, position + count))
    assert {count for _, _, count in given} == {grown}


@pytest.mark.parametrize(
    ("row_ns", "rows"), [(0, 16), (SLOW_NS // 16, 16), (SLOW_NS // 15, 15), (SLOW_NS // 2, 2), (3 * SLOW_NS, 1)]
)
def test_no_chunk_takes_longer_than_need_be(row_ns: int, rows: int) -> None:
    s = scheduler()
    stream(s, rows=64)
    s.up(1)
    given = submits(cursor(s, 5, batch=1))

    def go_on(more: int, row_ns: int) -> None:
        """Until so many more are made, and what was given out before is done."""
        upto = given[0][1] + more
        while given[0][1] < upto:
            _, position, count = given.pop(0)
            given.extend(submits(s.made(1, s.workers.slots[1].tasks[0], [], Took(row_ns * count))))
            given.extend(submits(s.release(5, position + count)))

    go_on(SETTLED_CHUNKS * 4 + 16, 0)
    assert {count for _, _, count in given} == {16}
    go_on(64, row_ns)
    assert {count for _, _, count in given} == {rows}
    go_on(64, 0)
    assert {count for _, _, count in given} == {16}


def test_one_row_is_made_first_while_its_time_is_unknown() -> None:
    s = scheduler()
    s.add_stream(1, "key", "source", N, lambda p: p, 0)
    s.add_lane(1, Lane(10, ("digest", 0), 16, 0))
    s.up(1)
    assert submits(cursor(s, 5)) == [(1, 0, 1), (1, 1, 1)]
    assert submits(s.made(1, s.workers.slots[1].tasks[0], [])) == [(1, 2, 4)]
    s.add_lane(1, Lane(11, ("new", 0), 16, 8))
    assert submits(s.made(1, s.workers.slots[1].tasks[0], [])) == [(1, 6, 2)]  # where the new lane begins
    assert submits(s.made(1, s.workers.slots[1].tasks[0], [])) == [(1, 8, 1)]


def test_nothing_is_queued_behind_a_chunk_that_takes_long() -> None:
    s = scheduler()
    stream(s, 1, rows=64)
    s.streams[1].took(Chunk(0, 1, (10,)), Took(2 * SLOW_NS))
    stream(s, 2, rows=64)
    s.up(1)
    assert submits(cursor(s, 5)) == [(1, 0, 1)]
    assert submits(cursor(s, 6, 2)) == []


def test_a_late_chunk_is_made_twice_if_a_worker_idles() -> None:
    """A job must be waiting for it, too."""
    s = scheduler()
    stream(s)
    s.up(1)
    s.up(2)
    given = submits(cursor(s, 5))
    assert given == [(1, 0, 4), (2, 4, 4), (1, 8, 4), (2, 12, 4)]
    late, *_ = s.workers.slots[2].tasks
    for task in list(s.workers.slots[1].tasks):
        s.made(1, task, [])
    assert s.workers.idle
    for at_s in (0.0, TWICE_S + 1):
        assert s.tick(at_s) == []  # it was told of a batch and has not used it up
    s.release(5, 4)  # the window has room for one chunk more
    s.made(1, s.workers.slots[1].tasks[0], [])
    again = submits(s.tick(TWICE_S + 2))
    assert again == [(1, 4, 4)]  # one for each idle worker
    assert late in s.workers.slots[2].tasks


def test_a_chunk_of_slow_rows_is_late_at_twice_the_forecast() -> None:
    s = scheduler()
    stream(s, rows=4)
    s.streams[1].took(Chunk(0, 1, (10,)), Took(3 * 10**9))
    s.up(1)
    assert submits(cursor(s, 5, batch=4, prefetch=1)) == [(1, 0, 1)]
    s.up(2)
    for at_s in (0.0, 5.9):
        assert s.tick(at_s) == []
    assert submits(s.tick(6.1)) == [(2, 0, 1)]


def test_a_full_window_gives_out_nothing() -> None:
    s = scheduler()
    stream(s, rows=8)
    cursor(s, 5)
    s.up(1)
    assert s.up(2) == []
    assert s.streams[1].head == s.streams[1].limit == 8


def test_nothing_is_filled_ahead_of_what_the_jobs_want() -> None:
    s = scheduler()
    stream(s, rows=64)
    cursor(s, 5, prefetch=8)
    s.up(1)
    s.up(2)
    assert s.streams[1].head == 8


def test_a_batch_is_told_when_all_below_is_ready_in_any_order() -> None:
    s = scheduler()
    stream(s)
    given = tasks([*cursor(s, 5), *s.up(1), *s.up(2)])
    assert told(s.made(1, given[1], ())) == []
    assert told(s.made(2, given[2], ())) == []
    assert told(s.made(1, given[0], ())) == [(5, 12)]


def test_a_batch_is_told_before_its_worker_has_more_to_do() -> None:
    s = scheduler()
    stream(s)
    s.up(1)
    (task, _) = tasks(cursor(s, 5))
    now = s.handle(ChunkMade(1, task, (), Took()), 0.0)
    assert (told(now), submits(now)) == ([(5, 4)], [])
    assert submits(list(s.later())) == [(1, 8, 4)]
    assert list(s.later()) == []


def test_jobs_with_other_batch_sizes_are_told_at_their_own_ends() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5, batch=3)
    cursor(s, 6, batch=8)
    first, second = tasks(s.up(1))
    assert told(s.made(1, first, ())) == [(5, 3)]
    assert told(s.made(1, second, ())) == [(5, 6), (6, 8)]


def test_ranks_are_told_of_their_own_batches() -> None:
    s = scheduler(chunk_rows=8)
    stream(s)
    cursor(s, 5, rank=0, world=2)
    cursor(s, 6, rank=1, world=2)
    first, _ = tasks(s.up(1))
    assert told(s.made(1, first, ())) == [(5, 4), (6, 8)]


def test_an_absent_rank_holds_its_rows_and_hears_all_on_arrival() -> None:
    s = scheduler(chunk_rows=8)
    stream(s)
    cursor(s, 5, rank=0, world=2)
    cursor(s, 6, rank=1, world=2, present=False)
    (first, second) = tasks(s.up(1))
    assert told(s.made(1, first, ())) == [(5, 4)]
    assert told(s.made(1, second, ())) == [(5, 12)]
    s.release(5, 16)
    assert s.streams[1].low == 4
    assert told(s.present(6)) == [(6, 16)]


def test_releases_beyond_news_fail_and_old_news_change_nothing() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    (first, _) = tasks(s.up(1))
    s.made(1, first, ())
    s.release(5, 4)
    assert s.release(5, 0) == []
    assert s.streams[1].cursors[5].released == 4
    assert s.release(5, 5)[0] == End(5, "protocol", "released up to 5, but only rows below 4 were announced")
    assert not s.streams


def test_the_slowest_job_holds_the_window() -> None:
    s = scheduler()
    stream(s, rows=8)
    cursor(s, 5)
    cursor(s, 6)
    a, b = tasks(s.up(1))
    s.made(1, a, ())
    s.made(1, b, ())
    assert submits(s.release(5, 8)) == []
    assert submits(s.release(6, 4)) == [(1, 8, 4)]


def test_an_empty_batch_needs_no_news_and_is_released_at_once() -> None:
    s = scheduler()
    stream(s, position=21, n=24)
    for rank in range(2):  # three rows for two ranks, one at a time: the first batch of rank 0 is empty
        cursor(s, rank, batch=1, position=21, rank=rank, world=2, n=24)
    assert s.streams[1].cursors[0].next_stop == 23
    s.release(0, 22)
    (first,) = tasks(s.up(1))[:1]
    assert told(s.made(1, first, ())) == [(0, 25), (1, 24)]


def test_a_job_that_asks_again_hears_the_same_with_held_bad_rows() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5, batch=2)
    (first, _) = tasks(s.up(1))
    s.made(1, first, [BadRow(1, 71, "x"), BadRow(3, 73, "y")])
    assert s.asks(5) == Announce(5, 4, ((1, 71, "x"), (3, 73, "y")))
    s.release(5, 2)
    assert s.asks(5) == s.asks(5) == Announce(5, 4, ((3, 73, "y"),))


def test_a_job_that_leaves_all_unread_waits_and_hears_no_more() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    assert s.handle(RankAsks(5, reads=False), 0.0) == []
    assert s.table.cursor(5).asked_in_vain


def test_a_bad_row_is_told_to_those_whose_lane_has_it() -> None:
    s = scheduler()
    stream(s, lanes=2)
    cursor(s, 5, lane=10)
    cursor(s, 6, lane=11)
    (first, _) = tasks(s.up(1))
    bad = [BadRow(0, 7, "everywhere"), BadRow(2, 9, "in one", (11,))]
    said = {a.cursor: a.bad for a in s.made(1, first, bad) if isinstance(a, Announce)}
    assert said == {5: ((0, 7, "everywhere"),), 6: ((0, 7, "everywhere"), (2, 9, "in one"))}


def test_many_bad_rows_are_told_by_position_and_some_by_reason() -> None:
    s = scheduler(chunk_rows=100)
    stream(s, rows=400)
    cursor(s, 5, batch=100)
    (first, _) = tasks(s.up(1))
    (announce,) = [a for a in s.made(1, first, [BadRow(p, p, "why") for p in range(100)]) if isinstance(a, Announce)]
    assert [p for p, _, _ in announce.bad] == list(range(100))
    assert sum(bool(reason) for _, _, reason in announce.bad) == BAD_REASONS_TOLD


def test_what_is_bad_is_forgotten_when_all_have_released_it() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    (first, _) = tasks(s.up(1))
    s.made(1, first, [BadRow(1, 1, "x")])
    assert s.streams[1].bad
    s.release(5, 4)
    assert not s.streams[1].bad


def test_chunks_of_a_dead_worker_are_made_first_by_others() -> None:
    s = scheduler()
    stream(s, rows=64)
    cursor(s, 5)
    s.up(1)
    s.up(2)
    assert submits(s.lost(1)) == []  # the other one has its two
    assert submits(s.up(3)) == [(3, 0, 4), (3, 4, 4)]


def test_a_task_that_failed_is_given_out_again() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    (first, _) = tasks(s.up(1))
    assert submits(s.failed(1, first)) == [(1, 0, 4)]


def test_rows_of_a_stuck_worker_are_not_reused_until_it_is_gone() -> None:
    s = scheduler()
    stream(s, rows=8)
    cursor(s, 5)
    s.up(1)
    assert s.stuck(1) == []
    a, b = tasks(s.up(2))
    s.made(2, a, ())
    s.made(2, b, ())
    assert submits(s.release(5, 8)) == []
    assert submits(s.lost(1)) == [(2, 8, 4), (2, 12, 4)]


def test_what_a_stuck_worker_says_late_is_not_heard() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    (first, _) = tasks(s.up(1))
    s.stuck(1)
    assert told(s.made(1, first, [BadRow(0, 0, "late")])) == []
    assert not s.streams[1].bad


def test_the_last_job_takes_lane_and_stream_along_and_each_once() -> None:
    s = scheduler()
    stream(s, lanes=2)
    cursor(s, 5, lane=10)
    cursor(s, 6, lane=10)
    cursor(s, 7, lane=11)
    assert s.left(5) == []
    assert s.left(6) == [DropLane(10)]
    assert s.left(7) == [DropLane(11), DropStream(1)]
    assert s.left(7) == []
    assert not s.streams


def test_work_for_a_stream_that_is_gone_comes_to_nothing() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    first, second = tasks(s.up(1))
    s.left(5)
    assert s.made(1, first, ()) == s.failed(1, second) == []
    stream(s, 2)
    assert submits(cursor(s, 6, 2)) == [(1, 0, 4), (1, 4, 4)]


def test_rows_that_no_job_needs_any_more_are_passed_over() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    cursor(s, 6, position=500)
    s.left(5)
    assert submits(s.up(1)) == [(1, 500, 4), (1, 504, 4)]


def test_a_job_hears_of_rows_when_the_one_behind_leaves() -> None:
    """The job that leaves was the one that needed a lost chunk."""
    s = scheduler()
    stream(s, rows=64)
    cursor(s, 5, prefetch=8)
    cursor(s, 6, position=8, prefetch=8)
    a, b = tasks(s.up(1))
    c, d = tasks(s.up(2))
    for task in (c, d):
        assert told(s.made(2, task, ())) == []
    assert told(s.made(1, b, ())) == []
    for free in s.workers._free:
        free.clear()  # worker 2 is busy with something else, so that nobody takes up what is lost
    s.lost(1)
    assert a not in s.workers.tasks
    assert told(s.left(5)) == [(6, 16)]


def test_streams_take_turns() -> None:
    s = scheduler()
    stream(s, 1, rows=64)
    stream(s, 2, rows=64)
    cursor(s, 5, 1)
    cursor(s, 6, 2)
    given = [a for w in range(3) for a in s.up(w) if isinstance(a, Submit)]
    assert [a.fill.stream for a in given] == [1, 2, 1, 2, 1, 2]


def _run_dry(s: ByHand, worker: int, eager: int, rounds: int) -> list[tuple[int, int]]:
    """The worker works; job `eager` releases at once what it is told; what the others are told."""
    heard: list[tuple[int, int]] = []
    for _ in range(rounds):
        news = told(s.made(worker, s.workers.slots[worker].tasks[0], ()))
        for c, upto in news:
            if c == eager:
                s.release(c, upto)
            else:
                heard.append((c, upto))
    return heard


def test_a_lost_chunk_is_made_again_beside_a_greedy_stream() -> None:
    """The other stream takes all that is made."""
    s = scheduler()
    stream(s, 1, rows=16)
    cursor(s, 5, 1, batch=8)
    cursor_2: dict[str, Any] = {"batch": 4}
    s.up(1)
    s.up(2)
    stream(s, 2, rows=64)
    cursor(s, 6, 2, **cursor_2)
    s.lost(1)  # with the first rows of stream 1, whose window is given out to its end
    assert any(c == 5 for c, _ in _run_dry(s, 2, eager=6, rounds=40))


def test_a_large_batch_is_filled_beside_a_greedy_stream() -> None:
    """Its ring is small, and the other stream takes all that is made."""
    s = scheduler()
    stream(s, 1, rows=16)
    stream(s, 2, rows=1024)
    cursor(s, 5, 1, batch=8)
    cursor(s, 6, 2, batch=4)
    s.up(1)
    assert (5, 8) in _run_dry(s, 1, eager=6, rounds=40)


def crash(
    s: ByHand, worker: int, index: int, strikes: int = CRASH_STRIKES, lane: int | None = None
) -> list[tuple[int, str, tuple[tuple[int, int | None], ...]]]:
    """A worker comes up, and dies at a sample in its first chunk."""
    s.up(worker)
    actions = s.lost(worker, Suspect(index, lane), strikes)
    return [(a.index, a.pipeline, a.places) for a in actions if isinstance(a, QuarantineSample)]


@pytest.mark.parametrize(("strikes", "deaths"), [(CRASH_STRIKES, 2), (KILL_STRIKES, 3)])
def test_a_sample_that_kills_again_and_again_is_quarantined(strikes: int, deaths: int) -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    said = [crash(s, worker, 3, strikes) for worker in range(deaths)]
    assert said == [[]] * (deaths - 1) + [[(3, "", ((1, None),))]]
    assert s.strikes.quarantined["source", ""] == {3}


def test_a_sample_that_kills_in_one_pipeline_is_bad_in_that_only() -> None:
    s = scheduler()
    stream(s, lanes=2)
    cursor(s, 5)
    cursor(s, 6, lane=11)
    assert crash(s, 1, 3, lane=11) == crash(s, 2, 3, lane=10) == crash(s, 3, 3) == []  # three things, one strike each
    assert crash(s, 4, 3, lane=11) == [(3, "digest1", ((1, 11),))]
    assert crash(s, 5, 3, lane=11) == []
    assert crash(s, 6, 3) == [(3, "", ((1, None),))]
    assert crash(s, 7, 3, lane=10) == crash(s, 8, 3, lane=10) == []  # it is not tried for anybody


def test_a_row_that_nobody_wants_any_more_strikes_no_sample() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    assert crash(s, 1, 3, lane=99) == crash(s, 2, 3, lane=99) == []


def test_a_sample_that_was_made_after_all_has_no_strikes() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    assert crash(s, 1, 3) == []
    (first, _) = tasks(s.up(2))
    s.made(2, first, ())
    s.lost(2)
    assert crash(s, 3, 3) == []


def test_suspects_of_a_chunk_that_was_made_have_no_strikes() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    assert crash(s, 1, 2) == crash(s, 2, 3) == []
    (first, _) = tasks(s.up(3))
    s.made(3, first, ())
    s.lost(3)
    assert crash(s, 4, 2) == []
    assert not s.strikes.quarantined  # no empty sets either


def test_a_death_in_a_block_strikes_nobody() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    (first, _) = [a.fill for a in s.up(1) if isinstance(a, Submit)]
    assert not first.alone
    s.lost(1, Suspect(None, 10))
    (again, second) = [a.fill for a in s.up(2) if isinstance(a, Submit)]
    assert (again.position, again.alone, second.alone) == (first.position, True, False)
    assert not s.strikes._strikes
    s.made(2, again.task, ())
    s.lost(2, Suspect(3))
    assert [a.fill.alone for a in s.up(3) if isinstance(a, Submit)] == [True, False]  # one sample is suspected now


def test_a_worker_that_held_nothing_speaks_against_nobody() -> None:
    s = scheduler()
    s.up(1)
    assert s.lost(1, Suspect(3)) == []
    assert s.lost(1, Suspect(3)) == s.stuck(1, Suspect(3)) == []
    assert not s.strikes._strikes


def test_known_bad_samples_are_kept_by_source() -> None:
    s = scheduler()
    s.strikes.set_known("a", ((1, ""), (2, "")))
    s.strikes.set_known("a", ((1, ""), (2, ""), (3, "")))
    assert s.strikes.quarantined["a", ""] == {1, 2, 3}
    assert not s.strikes.quarantined["b", ""]


def test_jobs_whose_tasks_fail_in_a_row_end_and_hear_the_story() -> None:
    """Those of the lane that is to blame, if one is; what they hear repeats no error, though at another sample."""
    reasons = [f"9 errors in a row, the first at x/{n}.jpg: ValueError: is {n}" for n in (1, 2, 3)]
    reasons[1] = "no memory"
    s = scheduler()
    stream(s, lanes=2)
    cursor(s, 5)
    cursor(s, 6, lane=11)
    s.up(1)
    actions: list[Action] = []
    for number in range(3):
        assert not any(isinstance(a, End) for a in actions)
        s.now_s = float(number)
        actions = s.failed(1, s.workers.slots[1].tasks[0], lane=11, reason=reasons[number])
    (end,) = [a for a in actions if isinstance(a, End)]
    assert (end.cursor, end.code, end.field) == (6, "spec", "pipeline")
    assert end.text == (
        "the workers cannot make the rows of this pipeline: 9 errors in a row, the first at x/3.jpg: ValueError: is 3 "
        "(before that: 1.0 s ago task 2 of worker 1 failed: no memory)"
    )
    assert set(s.streams[1].lanes) == {10}
    validate(s)


def test_a_machine_that_cannot_read_a_stream_makes_other_rows() -> None:
    """It ends no job, its reason is said once for all its workers, and after a while it tries again."""
    s = scheduler()
    stream(s)
    cursor(s, 5)
    s.up(1)
    s.up(2)
    said = []
    for worker in (1, 2):
        while tasks := s.workers.slots[worker].tasks:
            said += [a for a in s.failed(worker, tasks[0], elsewhere=True) if not isinstance(a, Submit)]
    assert [type(a) for a in said] == [Say]
    assert 5 in s.streams[1].cursors
    stream(s, 2)
    cursor(s, 6, 2)
    assert {task.stream for task in s.workers.tasks.values()} == {2}
    s.up(3)
    assert {s.workers.tasks[task].stream for task in s.workers.slots[3].tasks} == {1}
    s.tick(BARRED_S - 1)
    assert s.workers.slots[1].barred
    s.tick(BARRED_S)
    assert not s.workers.slots[1].barred
    validate(s)


def test_workers_that_may_read_nothing_cost_no_search_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be hundreds, and every release asks."""
    s = scheduler()
    stream(s)
    cursor(s, 5)
    for worker in range(1, 10):
        s.up(worker)
        while tasks := s.workers.slots[worker].tasks:
            s.failed(worker, tasks[0], elsewhere=True)
    searches = []
    search = Dispatch._next_chunk
    monkeypatch.setattr(Dispatch, "_next_chunk", lambda *a: (searches.append(a), search(*a))[1])
    s.tick(0.0)
    assert 0 < len(searches) < 9
    s.up(10)
    assert s.workers.slots[10].tasks
    validate(s)


def test_no_late_chunk_goes_to_a_machine_that_cannot_read_it() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    s.up(1)
    while tasks := s.workers.slots[1].tasks:
        s.failed(1, tasks[0], elsewhere=True)
    s.up(2)
    s.tick(0.0)
    s.tick(TWICE_S + 1)
    assert not s.streams[1].twice
    validate(s)


def test_a_task_that_is_made_between_ends_no_job() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    s.up(1)
    for _ in range(3):
        for _ in range(2):
            assert not any(isinstance(a, End) for a in s.failed(1, s.workers.slots[1].tasks[0]))
        s.made(1, s.workers.slots[1].tasks[0])
        s.release(5, s.table.cursor(5).announced)
    assert 5 in s.streams[1].cursors


def test_a_lane_whose_ops_kill_every_worker_ends() -> None:
    """Such as by a tokenizer's file: workers that die before they fill a chunk come back ever later, for all jobs."""
    s = scheduler()
    stream(s, lanes=2)
    cursor(s, 5)
    cursor(s, 6, lane=11)
    worker = 1
    s.up(worker)
    deaths = 2 * QUARANTINES_MOST  # two for each sample
    for number in range(2 * deaths - 2):
        if number == deaths - 2:
            s.made(worker, s.workers.slots[worker].tasks[0])
        actions = s.lost(worker, Suspect(number // 2, lane=11))
        assert any(isinstance(action, End) for action in actions) == (number == 2 * deaths - 3)
        worker += 1
        s.up(worker)
    (end,) = [action for action in actions if isinstance(action, End)]
    assert (end.cursor, end.code) == (6, "spec")
    assert "died or hung in its ops at 6 samples" in end.text
    assert set(s.streams[1].lanes) == {10}
    validate(s)


def test_what_was_decided_before_an_error_is_done_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick gives up a place, and then meets an error that nobody foresaw."""
    s = scheduler()
    stream(s, lanes=2)
    cursor(s, 5)
    cursor(s, 6, lane=11, present=False)
    with monkeypatch.context() as patch:
        patch.setattr(s._lag, "partings", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            s.tick(1000.0)
    assert DropLane(11) in s.up(1)
    validate(s)


def _duplicate(s: ByHand) -> int:
    """Worker 1 makes chunk 4 again, which worker 2 is late with, as with 12; the late task of chunk 4."""
    stream(s)
    s.up(1)
    s.up(2)
    cursor(s, 5)
    late, _ = s.workers.slots[2].tasks
    for task in list(s.workers.slots[1].tasks):
        s.made(1, task)
    s.tick(0.0)
    s.release(5, 4)
    s.made(1, s.workers.slots[1].tasks[0])
    assert submits(s.tick(TWICE_S + 1)) == [(1, 4, 4)]
    return late


def test_the_late_worker_of_a_chunk_made_twice_dies_first() -> None:
    """Until then it may still write unfinished rows."""
    s = scheduler()
    _duplicate(s)
    again = s.made(1, s.workers.slots[1].tasks[0], [BadRow(5, 5, "x")])
    assert KillWorker(2) in again
    assert told(again) == []
    assert told(s.lost(2)) == [(5, 12)]  # chunk 12 is given out again
    assert s.asks(5).bad == ((5, 5, "x"),)
    validate(s)


def test_a_chunk_made_twice_is_told_when_both_have_made_it() -> None:
    s = scheduler()
    late = _duplicate(s)
    s.made(1, s.workers.slots[1].tasks[0])
    assert told(s.made(2, late)) == [(5, 12)]
    assert not s.streams[1].twice
    validate(s)


def test_a_chunk_whose_second_worker_dies_is_still_under_way() -> None:
    s = scheduler()
    late = _duplicate(s)
    assert (1, 4, 4) not in submits(s.lost(1))
    s.made(2, late)
    assert s.streams[1].rows_filled == 16  # of four chunks, each once
    validate(s)


def test_a_lost_chunk_that_was_made_meanwhile_is_passed_over() -> None:
    chunks = Chunks()
    chunks.given(0)
    chunks.lost(0, 4)
    chunks.made(0)
    assert chunks.next_lost() is None


def test_a_chunk_that_was_made_again_counts_once() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    chunk = s.streams[1].next_chunk(4, 4)
    assert chunk is not None
    for _ in range(2):
        s.streams[1].filled(chunk, ())
    assert s.streams[1].rows_filled == 4


def test_a_worker_is_overdue_from_when_its_task_was_first_seen() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    s.up(1)
    assert s.workers.overdue(100.0, 5.0) == []
    s.tick(1.0)
    assert s.workers.overdue(6.0, 5.0) == []
    assert s.workers.overdue(6.1, 5.0) == [1]


def add_stream(**source: str) -> AddStream:
    return AddStream(1, source, "/index", "none", 0)


def test_workers_are_told_as_many_bad_samples_as_fit() -> None:
    s = scheduler()
    s.strikes.set_known("source", tuple((2**40 + index, "") for index in range(10_000)))
    few = s.strikes.told(add_stream(path="x" * 45_000), "source")
    many = s.strikes.told(add_stream(), "source")
    assert 0 < len(few.quarantined) < len(many.quarantined) == 4096
    assert len(encode(few)) <= MAX_MESSAGE_BYTES


def test_known_bad_samples_do_not_change_under_a_reader() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    s.strikes.set_known("source", ((1, ""),))
    assert s.strikes.told(add_stream(), "source").quarantined == []


def test_a_rank_that_has_ended_is_not_heard() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    s.left(5)
    assert s.release(5, 4) == s.handle(RankAsks(5), 0.0) == s.left(5) == []


def test_the_source_of_a_task_is_known_while_a_job_needs_it() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    first, _ = tasks(s.up(1))
    assert s.source_of(first) == "source"
    assert s.source_of(99) is None
    s.left(5)
    assert s.source_of(first) is None


def test_a_new_worker_hears_of_all_streams_and_lanes() -> None:
    world = World()
    assert world.join(Ask("key"), BatchShape(2, False, 0, 1), 0, 0)
    (opened, lane) = world.coordinator.setup()
    assert isinstance(opened, AddStream)
    assert isinstance(lane, AddLane)
    assert opened.stream == lane.stream


def _reads_no_lane(s: ByHand) -> None:
    s.streams[1].cursors[5].lane = 99


def _waits_for_itself(s: ByHand) -> None:
    s._meetings.start_early(s.streams[1], 1, 4, 1.0)


def _is_capped(s: ByHand) -> None:
    s.streams[1].cap = 4


def _is_behind(s: ByHand) -> None:
    s.streams[1].head = -1


def _has_no_job(s: ByHand) -> None:
    del s.table.jobs[5]


def _runs_nothing(s: ByHand) -> None:
    s.streams[1].chunks.running.clear()


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (_reads_no_lane, "lanes that are read"),
        (_waits_for_itself, "a stream waits for itself"),
        (_is_capped, "are capped, but only these wait"),
        (_is_behind, "stream 1: floor 0, low 0, head -1"),
        (_has_no_job, "cursor 5 is a rank of no job"),
        (_runs_nothing, "stream 1: tasks"),
    ],
)
def test_each_contradiction_is_named(spoil: Callable[[ByHand], None], found: str) -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    s.up(1)
    spoil(s)
    with pytest.raises(AssertionError, match=found):
        validate(s)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (RankLeft(5), "a rank left"),
        (WorkerLost(1), "worker 1 was lost"),
        (WorkerLost(1, Suspect(3), stuck=True), "worker 1 hung at sample 3"),
        (WorkerLost(1, Suspect(None, 3)), "worker 1 was lost at several samples"),
        (ChunkFailed(1, 2, "a reason"), "task 2 of worker 1 failed: a reason"),
        (Joined(1, 2, {}), "the jobs of stream 1 joined stream 2"),
        (GoesAlone(1, "it is late"), "stream 1 went on alone, because it is late"),
        (QuarantineSample("source", 3), "sample 3 was quarantined"),
        (Parting(1, (5, 6)), "2 jobs parted, because they held others back"),
        (WorkerUp(1), "WorkerUp"),
    ],
)
def test_the_story_says_in_words_what_happened(what: Noted, words: str) -> None:
    story = Story()
    story.note(what, 7)
    story.now_s = 2.5
    assert story.of(7) == f" (before that: 2.5 s ago {words})"
    assert story.of(8) == ""


def test_the_story_names_the_rank_that_attached() -> None:
    world = World()
    assert world.join(Ask("key"), BatchShape(2, False, 0, 1), 0, 0)
    (at,) = world.table.streams
    assert "rank 0 of job 'job1' attached" in world.coordinator.story.of(at)


# -- streams that join and part -------------------------------------------------------------------------


def finish(s: ByHand, stream: int) -> list[Action]:
    """The workers make all that they have of a stream; what follows."""
    own = [(task.worker, number) for number, task in s.workers.tasks.items() if task.stream == stream]
    return [action for worker, number in own for action in s.made(worker, number)]


def test_streams_of_one_key_that_meet_join() -> None:
    s = scheduler()
    stream(s, 1)
    stream(s, 2)
    s.streams[2].key = "key1"
    cursor(s, 5, 1)
    cursor(s, 6, 2)
    assert s.tick(0.0) == [Joined(1, 2, {10: 20}), Move(5, 20, 0), DropLane(10), DropStream(1)]
    assert s.table.stream_of(5).id == 2
    validate(s)


def early(s: ByHand, id: int, into: int, position: int, cursor_id: int) -> None:
    """An early stream that waits for another one."""
    stream(s, id, position=position)
    s._meetings.start_early(s.streams[id], into, 4, 100.0)
    cursor(s, cursor_id, id, position=position, prefetch=8)


def test_an_early_stream_starts_no_chunk_when_the_other_is_near() -> None:
    """It joins when its last chunk is made; the streams that wait for it then wait for the other."""
    s = scheduler()
    stream(s, 1)
    cursor(s, 5)
    early(s, 2, 1, 16, 6)
    early(s, 3, 2, 400, 7)
    early(s, 4, 1, 600, 8)
    assert s.streams[2].cap == 28
    for worker in range(6):
        s.up(worker)
    assert s.streams[2].head == 24
    assert s.streams[1].head + 8 >= 24
    assert s.streams[2].cap == 24
    actions = finish(s, 2)
    assert Joined(2, 1, {20: 10}) in actions
    assert s.waits_for == {3: 1, 4: 1}
    validate(s)


def test_a_wait_ends_with_the_last_job_of_the_early_stream() -> None:
    s = scheduler()
    stream(s, 1)
    cursor(s, 5)
    early(s, 2, 1, 400, 6)
    assert s.streams[1].gate == 400
    s.left(6)
    assert not s.waits_for
    assert s.streams[1].gate is None
    validate(s)


def test_an_early_stream_waits_on_when_another_stops_waiting() -> None:
    s = scheduler()
    for id in (1, 2):
        stream(s, id)
        cursor(s, 4 + id, id)
    early(s, 3, 1, 400, 7)
    early(s, 4, 2, 400, 8)
    assert GoesAlone(4, "the stream that it waited for is gone") in s.left(6)
    assert s.waits_for == {3: 1}
    assert s.streams[1].gate == 400
    validate(s)


def answered(s: ByHand, actions: list[Action], *, has_room: bool = True) -> list[Action]:
    """All that is done, with or without memory for rings."""
    done = list(actions)
    while actions and isinstance(ring := actions[-1], MakeRing):
        answer = RingMade(ring.needed) if has_room else RingRefused("memory", "no room")
        actions = s.handle(answer, s.now_s)
        done += actions
    return done


def test_a_stream_goes_when_all_its_jobs_part() -> None:
    s = scheduler()
    stream(s)
    cursor(s, 5)
    actions = answered(s, s._run(s._partings.part(Parting(1, (5,)), 0.0), None))
    assert actions[-2:] == [DropLane(10), DropStream(1)]
    assert s.table.stream_of(5).parted_s == 0.0
    validate(s)


def test_a_job_without_room_to_part_must_soon_attach_again() -> None:
    """That is, if it holds back another user's job. With it all jobs that read its ring: none refills its rows."""
    s = scheduler()
    stream(s, lanes=2)
    cursor(s, 5)
    cursor(s, 6, lane=11)
    cursor(s, 7)
    cursor(s, 8, present=False)

    def part(now_s: float, *, strangers: bool) -> list[Action]:
        s.now_s = now_s
        steps: Steps = s._partings.part(Parting(1, (5,), strangers), now_s)
        return [a for a in answered(s, s._run(steps, None), has_room=False) if not isinstance(a, MakeRing)]

    (said,) = part(1.0, strangers=True)
    assert isinstance(said, Say)
    assert "cannot part from them: no room" in said.text
    assert part(NO_ROOM_S, strangers=True) == []
    assert part(NO_ROOM_S + 1.0, strangers=False) == []
    (said, ended, other, dropped) = part(NO_ROOM_S + 1.0, strangers=True)
    assert isinstance(said, Say)
    assert "must attach again" in said.text
    assert isinstance(ended, End)
    assert isinstance(other, End)
    assert (ended.cursor, ended.code, other.cursor, dropped) == (5, "internal", 7, DropLane(10))
    assert [number for number in (5, 6, 7, 8) if s.table.knows(number)] == [6]
    validate(s)


def test_a_slow_pipeline_whose_stream_has_joined_stays_for_now() -> None:
    """The stream could join once the absent rank of another slow pipeline had left it."""
    s = scheduler()
    s.table._ids = itertools.count(100)  # the numbers below are given by hand
    stream(s, 1)
    cursor(s, 4)
    stream(s, 2)
    s._meetings.start_early(s.streams[2], 1, 4, 100.0)
    s.streams[2].head = 8  # its first rows are made and released
    for uid in (1, 2):
        s.add_lane(2, Lane(20 + uid, (f"slow{uid}", uid), 16, 0, spent=Spent(LEAST_SAMPLES * 1e9, LEAST_SAMPLES)))
    s.streams[2].lanes[20].spent.add(LEAST_SAMPLES, LEAST_SAMPLES)
    for uid in (1, 0, 2):
        cursor(s, 5 + uid, 2, lane=20 + uid, position=8, present=uid != 1)
        s.table.jobs[5 + uid].uid = uid
    actions = answered(s, s.tick(1.0))
    assert [what.jobs for _, what, _ in s.story if isinstance(what, Parting)] == [(6,)]
    assert Joined(2, 1, {20: 10, 22: 22}) in actions
    validate(s)


@pytest.mark.parametrize(("row_ns", "rows", "grown"), [(1000, 4096, 256), (1000, 300, 64), (20_000, 4096, 32)])
def test_chunks_of_quick_rows_grow_further(row_ns: int, rows: int, grown: int) -> None:
    """Rows that are only copied: as many as take a millisecond, where the ring has room."""
    s = scheduler()
    stream(s, rows=rows)
    s.up(1)
    given = submits(cursor(s, 5, batch=2))
    for _ in range(SETTLED_CHUNKS + 4):
        _, position, count = given.pop(0)
        given += submits(s.made(1, s.workers.slots[1].tasks[0], [], Took(row_ns * count)))
        given += submits(s.release(5, position + count))
    assert given[-1][2] == grown


def test_a_worker_that_retires_finishes_its_chunks_first() -> None:
    s = scheduler()
    stream(s)
    s.up(1)
    s.up(2)
    cursor(s, 5)
    assert s.handle(WorkerRetires(1), 0.0) == []
    s.handle(WorkerRetires(9), 0.0)  # it has ended already
    for task in list(s.workers.slots[1].tasks):
        assert KillWorker(1) not in s.tick(1.0)
        assert not [each for each in s.made(1, task) if isinstance(each, Submit) and each.worker == 1]
    assert KillWorker(1) in s.tick(2.0)
    s.lost(1)
    assert KillWorker(1) not in s.tick(3.0)
    validate(s)
