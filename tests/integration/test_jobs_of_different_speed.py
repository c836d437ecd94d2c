"""Jobs of different speed on one stream: which one waits, which parts, and that none loses rows."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from prepclient import Joining, PrepClient, RandomResizedCrop, SyntheticImages
from tests.support.client_process import rows_of
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

SAMPLES = 2000
SOURCE = SyntheticImages(SAMPLES, size=(48, 64))
OPS = [RandomResizedCrop(16)]


def views(lane: dict[str, Any]) -> int:
    """Images in a row of a lane."""
    return sum(name.startswith("image") for name in lane["fields"])


def client(server: Server | None, job: str, lag: Any = "auto", start: Any = None, **options: Any) -> PrepClient:
    joining = Joining(wait_s=600.0, lag=lag, start=start)
    options = {"batch_size": 50, "shuffle": True, "fields": "dict", "timeout_s": 1800.0, "job": job, **options}
    if server is None:
        return PrepClient(SOURCE, OPS, inline=True, **options)
    return PrepClient(SOURCE, OPS, runtime_dir=server.runtime_dir, prefetch=100, joining=joining, **options)


def epoch(job: PrepClient) -> list[tuple[int, str]]:
    return [row for batch in job for row in rows_of(batch)]


@pytest.fixture(scope="module")
def expected() -> list[list[tuple[int, str]]]:
    with client(None, "reference") as reference:
        return [epoch(reference) for _ in range(2)]


@pytest.mark.parametrize("lag", ["detach", "auto"])
def test_a_job_that_stops_reading_is_detached_and_loses_nothing(
    server: Server, expected: list[list[tuple[int, str]]], lag: str
) -> None:
    """The reading job gets its whole epoch while the other holds its rows; then the other gets its whole epoch."""
    with client(server, "slow", lag=lag) as slow, client(server, "quick", lag=lag) as quick:
        slow_batches, quick_batches = iter(slow), iter(quick)
        got_slow = rows_of(next(slow_batches))
        got_quick = [row for batch in quick_batches for row in rows_of(batch)]
        assert got_quick == expected[0]
        assert len(server.status()["streams"]) == 2
        got_slow += [row for batch in slow_batches for row in rows_of(batch)]
        assert got_slow == expected[0]
        assert epoch(slow) == expected[1]
        assert epoch(quick) == expected[1]


def test_a_lent_batch_stays_as_it_was_while_the_others_go_on(
    server: Server, expected: list[list[tuple[int, str]]]
) -> None:
    """Memory that a job still looks at is not refilled, however far the others have got."""
    with client(server, "looks", zero_copy=True, lag="detach") as looks, client(server, "reads", lag="detach") as reads:
        looking, reading = iter(looks), iter(reads)
        lent = next(looking)
        assert [row for batch in reading for row in rows_of(batch)] == expected[0]
        assert rows_of(lent) == expected[0][:50]
        # Rows of the ring that it left are ready, too, but a ring cannot be more than full.
        wait_until(lambda: [job["ring_fill"] for job in server.status()["jobs"] if job["name"] == "looks"] == [1.0])
        rest = [row for batch in looking for row in rows_of(batch)]
        assert rest == expected[0][50:]


def test_all_views_of_a_job_that_is_left_behind_move_with_it(
    server: Server, expected: list[list[tuple[int, str]]]
) -> None:
    with client(None, "reference", views=2) as reference:
        pairs = epoch(reference)
    with (
        client(server, "looks", views=2, zero_copy=True, lag="detach") as looks,
        client(server, "reads", views=2, lag="detach") as reads,
        client(server, "one", lag="detach", start="first") as one,  # else the machine's speed decides where
    ):
        looking, reading = iter(looks), iter(reads)
        lent = next(looking)
        len(one)
        begun = [(views(lane), lane["jobs"]) for stream in server.status()["streams"] for lane in stream["lanes"]]
        assert sorted(begun) == [(1, 1), (2, 2)]
        assert [row for batch in reading for row in rows_of(batch)] == pairs
        assert rows_of(lent) == pairs[:50]
        moved = [views(lane) for stream in server.status()["streams"] for lane in stream["lanes"]]
        assert sorted(moved) == [1, 2, 2]
        assert [row for batch in looking for row in rows_of(batch)] == pairs[50:]
        assert epoch(one) == expected[0]


def test_with_wait_the_others_wait(server: Server, expected: list[list[tuple[int, str]]]) -> None:
    """A job that may hold the others back does; all get everything, from one pass of decoding."""
    with client(server, "slow", lag="wait") as slow, client(server, "quick", lag="wait") as quick:
        slow_batches, quick_batches = iter(slow), iter(quick)
        got_slow, got_quick = [], []
        for _ in range(SAMPLES // 50):  # in step: a ring holds less than an epoch
            got_quick += rows_of(next(quick_batches))
            got_slow += rows_of(next(slow_batches))
        assert got_quick == got_slow == expected[0]
        (stream,) = server.status()["streams"]
        assert stream["sharing_factor"] > 1.5


def test_a_verdict_tells_clients_of_one_name_apart(server: Server) -> None:
    """Clients of one script have one name, unless it names them."""
    with client(server, "same", "wait", batch_size=5) as slow, client(server, "same", "wait", batch_size=5) as quick:
        slow_batches, quick_batches = iter(slow), iter(quick)
        next(slow_batches)
        reader = threading.Thread(target=list, args=(quick_batches,))
        reader.start()

        def causes() -> list[list[str]]:
            return [job["verdict"]["causes"] for job in server.status()["jobs"]]

        held_up_by = [f"job same (id {server.status()['jobs'][0]['id']})"]
        try:
            wait_until(lambda: held_up_by in causes(), why=causes)
        finally:
            slow.close()
            reader.join(PATIENCE_S)


def test_jobs_that_meet_again_share_again(server: Server, expected: list[list[tuple[int, str]]]) -> None:
    """A job that was left behind and has caught up comes back to the shared stream, with all its rows."""
    with client(server, "slow", lag="detach") as slow, client(server, "quick", lag="detach") as quick:
        slow_batches, quick_batches = iter(slow), iter(quick)
        got_slow, got_quick = rows_of(next(slow_batches)), []
        for _ in range(20):
            got_quick += rows_of(next(quick_batches))
        assert len(server.status()["streams"]) == 2
        got_slow += [row for batch in slow_batches for row in rows_of(batch)]
        got_quick += [row for batch in quick_batches for row in rows_of(batch)]
        assert got_slow == got_quick == expected[0]
        wait_until(lambda: len(server.status()["streams"]) == 1)
        assert epoch_in_step(slow, quick) == (expected[1], expected[1])


def epoch_in_step(one: PrepClient, other: PrepClient) -> tuple[list[Any], list[Any]]:
    rows: tuple[list[Any], list[Any]] = ([], [])
    for a, b in zip(one, other, strict=True):
        rows[0].extend(rows_of(a))
        rows[1].extend(rows_of(b))
    return rows
