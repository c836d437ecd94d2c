"""Where a new job starts: shared where it can be, exact where it must be, alone where neither is."""

from __future__ import annotations

from typing import Any

import pytest

from prepserver.order import make_order
from prepserver.pipeline.batches import BatchLine, BatchShape
from prepserver.protocol.work import MAX_LANES
from prepserver.schedule.join import Place, Request, choose_place
from prepserver.schedule.records import Cursor, Lane
from prepserver.schedule.stream import Stream
from tests.support.scheduling import SPEC

N = 3 * 8192  # three blocks
B1, B2 = 8192, 16384
KEY = ("digest", 1000)


def stream(
    *,
    id: int = 1,
    shuffle: Any = "cyclic",
    low: int = 0,
    head: int = 0,
    rows: int = 512,
    start: int = 0,
    batch: int = 64,
) -> Stream:
    """A running stream with one lane and one job at `low`, all of whose rows up to `head` are ready."""
    made = Stream(id, "key", "source", N, make_order(shuffle, N, 5).next_start, head, SPEC)
    made.lanes[10 * id] = Lane(10 * id, KEY, rows, start)
    line = BatchLine(N, BatchShape(batch), low // N * N, low)
    made.cursors[1] = Cursor(1, 10 * id, 1, line, rows, low, low)
    return made


def request(epoch: int = 0, **changed: Any) -> Request:
    fields: dict[str, Any] = {
        "stream_key": "key", "lane_key": KEY, "n": N, "rows_needed": 128, "position": epoch * N,
        "epoch_start": epoch * N, "join_wait_s": 10.0, "is_free": True,
    }  # fmt: skip
    return Request(**(fields | changed))


def at(position: int, epoch_start: int | None = None, **changed: Any) -> Request:
    epoch_start = position // N * N if epoch_start is None else epoch_start
    return request(position=position, epoch_start=epoch_start, is_free=False, **changed)


def test_the_first_job_gets_a_stream_where_its_epoch_begins() -> None:
    assert choose_place(request(), [], 100.0) == Place(None, None, 0, 0)
    assert choose_place(request(epoch=7), [], 100.0) == Place(None, None, 7 * N, 7 * N)


def test_a_job_of_several_machines_begins_at_its_epochs_start() -> None:
    """That holds in cyclic order, too."""
    running = stream(low=100, head=500)
    assert choose_place(at(N), [running], 1e6) == Place(1, 10, N, N)
    assert choose_place(at(0), [running], 1e6) == Place(None, None, 0, 0)
    assert choose_place(at(0), [stream(head=300)], 1e6) == Place(1, 10, 0, 0)


def test_a_job_joins_at_the_start_while_the_ring_still_holds_it() -> None:
    assert choose_place(request(), [stream(head=300)], 100.0) == Place(1, 10, 0, 0)


@pytest.mark.parametrize(
    ("low", "boundary"), [(1, B1), (8000, B1), (B1, B1), (B1 + 1, B2), (B2 + 5, N), (N + 1, N + B1)]
)
def test_a_cyclic_job_joins_at_the_next_block_whole_in_the_ring(low: int, boundary: int) -> None:
    assert choose_place(request(epoch=3), [stream(low=low, head=low + 400)], 1e6) == Place(1, 10, boundary, boundary)


def test_a_job_in_another_order_begins_only_at_its_epochs_start() -> None:
    running = stream(shuffle="full", low=100, head=500)
    assert choose_place(at(N), [running], 1e6) == Place(1, 10, N, N)
    assert choose_place(at(0), [running], 1e6) == Place(None, None, 0, 0)


@pytest.mark.parametrize(("wait_s", "shared"), [(7.0, False), (8.0, True)])
def test_a_job_waits_for_a_shared_start_only_as_long_as_it_said(wait_s: float, shared: bool) -> None:
    running = stream(low=300, head=500)  # 7692 rows to the next block, at 1000 a second
    found = choose_place(request(join_wait_s=wait_s, early=False), [running], 1000.0)
    assert found == (Place(1, 10, B1, B1) if shared else Place(None, None, 0, 0))
    found = choose_place(request(join_wait_s=wait_s), [running], 1000.0)
    assert found == (Place(None, None, B1, B1, into=1) if shared else Place(None, None, 0, 0))


def test_a_wait_of_a_moment_is_worth_no_stream_of_its_own() -> None:
    running = stream(low=300, head=500)
    assert choose_place(request(), [running], 7691.0).into == 1
    assert choose_place(request(), [running], 7692.0) == Place(1, 10, B1, B1)


def test_where_its_first_row_is_in_work_a_job_waits_for_it() -> None:
    running = stream(low=B1 - 500, head=B1 + 1)
    running.chunks.given(B1 - 300)  # given to a worker, and not made yet
    assert choose_place(request(), [running], 1.0) == Place(None, None, 0, 0)
    assert choose_place(request(join_wait_s=300.0), [running], 1.0) == Place(1, 10, B1, B1)


def test_an_early_start_is_made_in_every_order_and_position() -> None:
    full = stream(shuffle="full", low=100, head=500)
    assert choose_place(at(N, join_wait_s=30.0), [full], 1000.0) == Place(None, None, N, N, into=1)
    running = stream(low=1000, head=1400)
    assert choose_place(at(5000), [running], 1000.0) == Place(None, None, 0, 5000, into=1)


@pytest.mark.parametrize("low", [B1 + 64, B1 + 256])
def test_a_job_begins_where_another_has_just_begun(low: int) -> None:
    running = stream(low=low, head=low + 512)
    found = Place(None, None, B1, B1, ahead=1)
    assert choose_place(request(), [running], 1000.0, would_wait=lambda each: each is running) == found
    early = Place(None, None, B2, B2, into=1)
    assert choose_place(request(), [running], 1000.0) == early  # as where the other stream would not wait
    slow = (running.head - B1) / 2 - 1
    assert choose_place(request(join_wait_s=300.0), [running], slow, would_wait=lambda _: True) == early
    assert choose_place(at(B1), [running], 1000.0, would_wait=lambda _: True) == Place(None, None, 0, B1)
    assert choose_place(request(join_wait_s=0.0), [running], 1000.0, would_wait=lambda _: True) == Place(
        None, None, 0, 0
    )


def test_no_job_begins_far_behind_a_stream() -> None:
    """The new one must come near without its job, which may compile a model first."""
    assert choose_place(request(), [stream(low=257, head=768)], 1000.0, would_wait=lambda _: True).ahead == 1
    assert choose_place(request(), [stream(low=258, head=769)], 1000.0, would_wait=lambda _: True).into == 1


def test_an_epoch_of_two_rounds_is_too_short_for_an_early_start() -> None:
    short = request(rows_needed=N, join_wait_s=100.0)
    assert choose_place(short, [stream(rows=N, low=300, head=500)], 1000.0) == Place(1, 10, B1, B1)


def test_nobody_waits_for_a_stream_that_rests_before_the_place() -> None:
    early = stream(id=2, low=B1, head=B1 + 300)
    early.cap = B1 + 384
    assert choose_place(request(), [early], 1e6) == Place(2, 20, B1, B1)
    assert choose_place(at(B1 + 383), [early], 1e6) == Place(2, 20, 0, B1 + 383)
    assert choose_place(at(B1 + 384), [early], 1e6).stream is None
    assert choose_place(request(), [early, stream(low=5, head=500)], 1e6).stream == 2
    early.cursors[1].released = B1 + 1
    early.changed()
    assert choose_place(request(), [early, stream(low=5, head=500)], 1e6) == Place(1, 10, B1, B1)


@pytest.mark.parametrize(("wait_s", "found"), [(0.0, None), (7.4, None), (7.5, 2)])
def test_a_job_shares_an_early_stream_only_if_it_may_wait(wait_s: float, found: int | None) -> None:
    """That is as long as the early stream waits for the shared one."""
    early, shared = stream(id=2, low=B1, head=B1 + 384), stream(low=500, head=B1 - 366 - 1000)
    early.cap = B1 + 384
    given = at(B1, join_wait_s=wait_s)
    assert choose_place(given, [early, shared], 233.5, {2: 1}).stream == found
    assert choose_place(given, [early], 233.5, {2: 1}).stream == 2  # what it waits for is gone: nobody waits


def test_a_rate_of_nothing_is_taken_as_one_row_per_second() -> None:
    running = stream(low=B1 - 5, head=B1 - 4)
    assert choose_place(request(join_wait_s=4.0, early=False), [running], 0.0).stream == 1
    assert choose_place(request(join_wait_s=3.9, early=False), [running], 0.0).stream is None


def test_a_job_that_must_not_wait_joins_where_rows_are_ready() -> None:
    assert choose_place(request(join_wait_s=0.0), [stream(low=B1, head=B1 + 100)], 100.0) == Place(1, 10, B1, B1)


def test_a_resumed_job_goes_on_at_its_very_position_or_alone() -> None:
    running = stream(low=1000, head=1400)
    assert choose_place(at(1000), [running], 100.0) == Place(1, 10, 0, 1000)
    assert choose_place(at(1234), [running], 100.0) == Place(1, 10, 0, 1234)
    assert choose_place(at(1500), [running], 100.0) == Place(1, 10, 0, 1500)
    assert choose_place(at(999), [running], 100.0) == Place(None, None, 0, 999)
    assert choose_place(at(N - 1, join_wait_s=1.0), [running], 100.0) == Place(None, None, 0, N - 1)


def test_a_resumed_job_keeps_the_start_of_its_epoch() -> None:
    assert choose_place(at(B2 + 5, B1), [], 1.0) == Place(None, None, B1, B2 + 5)
    assert choose_place(at(B2 + 5, B1), [stream(low=B2)], 1e6) == Place(1, 10, B1, B2 + 5)


def test_another_pipeline_gets_its_own_lane_from_the_head_on() -> None:
    other = ("other", 1000)
    running = stream(low=B1, head=B1 + 100)
    assert choose_place(request(lane_key=other), [running], 1e6) == Place(1, None, B2, B2)
    assert choose_place(at(B1 + 99, lane_key=other), [running], 1e6) == Place(None, None, 0, B1 + 99)
    assert choose_place(at(B1 + 100, lane_key=other), [running], 1e6) == Place(1, None, 0, B1 + 100)


def test_another_user_shares_the_stream_and_not_the_memory() -> None:
    assert choose_place(request(lane_key=("digest", 1001)), [stream()], 1e6) == Place(1, None, 0, 0)


def test_a_lane_that_starts_later_is_joined_from_its_start_on() -> None:
    assert choose_place(request(), [stream(low=0, head=9000, start=100)], 1e6) == Place(1, 10, B1, B1)


def test_batches_beyond_the_smallest_ring_leave_that_window() -> None:
    big = request(rows_needed=1024)
    assert choose_place(big, [stream(rows=512)], 1e6) == Place(None, None, 0, 0)
    assert choose_place(big, [stream(rows=1024)], 1e6) == Place(1, 10, 0, 0)


def test_a_job_is_not_put_into_a_large_ring_beside_a_small_one() -> None:
    """The small one is too small for it."""
    running = stream(rows=4096)
    running.lanes[11] = Lane(11, ("other", 1000), 512, 0)
    assert choose_place(request(rows_needed=1024), [running], 1e6).stream is None
    assert choose_place(request(rows_needed=512), [running], 1e6) == Place(1, 10, 0, 0)


def test_a_new_lane_fits_the_batches_of_those_beside_it() -> None:
    other = ("other", 1000)
    running = stream(rows=4096, batch=1024)
    assert choose_place(request(lane_key=other, rows_needed=512), [running], 1e6) == Place(1, None, 0, 0, rows=2048)
    assert choose_place(request(lane_key=other, rows_needed=2048), [running], 1e6) == Place(1, None, 0, 0)
    running.head = 500
    early = choose_place(request(lane_key=other, rows_needed=512), [running], 1000.0)
    assert early == Place(None, None, B1, B1, rows=2048, into=1)


def test_other_sources_seeds_and_orders_are_other_streams() -> None:
    assert choose_place(request(stream_key="another"), [stream()], 1e6) == Place(None, None, 0, 0)


def test_a_job_joins_where_it_waits_least_and_a_lane_exists() -> None:
    far, near = stream(id=1, low=100, head=500), stream(id=2, low=8000, head=8100)
    assert choose_place(request(), [far, near], 1e6).stream == 2
    assert choose_place(request(), [near, far], 1e6).stream == 2
    same, fresh = stream(id=1), stream(id=2)
    fresh.lanes[20].key = ("other", 1000)
    assert choose_place(request(), [fresh, same], 1e6) == Place(1, 10, 0, 0)


def test_a_stream_with_all_its_lanes_takes_no_new_pipeline() -> None:
    running = stream()
    running.lanes = {k: Lane(k, (f"p{k}", 0), 512, 0) for k in range(MAX_LANES)}
    running.cursors[1].lane = 0
    assert choose_place(request(), [running], 1e6).stream is None
    assert choose_place(request(lane_key=("p0", 0)), [running], 1e6).stream == 1
