"""Jobs that attach while another one is in mid-block: batches at once, few rows made twice, then shared for good."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prepclient import Joining, PrepClient, RandomHorizontalFlip, RandomResizedCrop, SyntheticImages
from prepserver.pipeline.ops import Op
from tests.support.clients import Rows, await_heard, rows_of
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

SAMPLES = 16384 + 6  # two blocks
BLOCK = 8195
SOURCE = SyntheticImages(SAMPLES, 8, seed=1)
OPS: list[Op] = [RandomResizedCrop(8)]
OTHER_OPS: list[Op] = [RandomResizedCrop(6), RandomHorizontalFlip()]
CHUNK = 16


def client(server: Server, job: str, batch_size: int, ops: list[Op] = OPS, **options: Any) -> PrepClient:
    return PrepClient(
        SOURCE, ops, fields="dict", shuffle=True, seed=6, batch_size=batch_size, job=job,
        joining=Joining(wait_s=600.0, lag="wait"), runtime_dir=server.runtime_dir, timeout_s=1800.0, **options,
    )  # fmt: skip


def unhurried(new_server: Callable[..., Server]) -> Server:
    """A daemon that does not know its pool's rate yet, and so takes the next block to be seconds away."""
    return new_server(workers=2)


def begin(server: Server, first: PrepClient, batches: int = 1) -> Iterator[Any]:
    """The first job reads, until the daemon has heard of it all; nobody can begin at 0 any more."""
    iterator = iter(first)
    for _ in range(batches):
        next(iterator)
    await_heard(server, first)
    return iterator


def inline(ops: list[Op], position: int, count: int) -> Rows:
    """What inline mode makes of these positions."""
    with PrepClient(SOURCE, ops, fields="dict", shuffle=True, seed=6, batch_size=256, inline=True) as alone:
        state = alone.state_dict()
        alone.load_state_dict({**state, "epoch_start": position, "position": position})
        rows: Rows = []
        for batch in alone:
            rows += rows_of(batch)
            if len(rows) >= count:
                break
        return rows[:count]


class Reader:
    """A job that reads in a thread of its own, for so many rows or until it is stopped."""

    def __init__(self, job: PrepClient, most: int | None = None) -> None:
        self.rows: Rows = []
        self._job = job
        self._most = most
        self._stops = threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self._done = self._threads.submit(self._read)

    def _read(self) -> None:
        while True:
            for batch in self._job:
                self.rows += rows_of(batch)
                if self._stops.is_set() or (self._most is not None and len(self.rows) >= self._most):
                    return

    def end(self) -> Rows:
        """All rows that it got, when it has them."""
        self._done.result(2 * PATIENCE_S)
        self._threads.shutdown()
        return self.rows

    def stop(self) -> None:
        """After the next batch."""
        self._stops.set()
        self.end()


def jobs(server: Server) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in server.status()["jobs"]}


@pytest.mark.parametrize(("ops", "batch_size"), [(OPS, 64), (OTHER_OPS, 100)])
def test_a_joiner_in_mid_block_begins_at_once_and_then_shares(
    new_server: Callable[..., Server], caplog: pytest.LogCaptureFixture, ops: list[Op], batch_size: int
) -> None:
    server = unhurried(new_server)
    filled_before = server.status()["rows_filled"]
    with client(server, "first", 128) as first, client(server, "late", batch_size, ops) as late:
        batches = begin(server, first, 8)
        reading = Reader(late, SAMPLES)
        wait_until(lambda: "reads a separate stream" in caplog.text, why=server.log)
        got = len(reading.rows)
        assert got == max(SAMPLES // 64 // batch_size, 2) * batch_size
        assert late.state_dict()["epoch_start"] == BLOCK
        streams = {stream["id"]: stream for stream in server.status()["streams"]}
        own, shared = (streams[jobs(server)[name]["stream"]] for name in ("late", "first"))
        assert own["waits_for"] == shared["id"] != own["id"]
        assert own["rows_filled"] == got
        assert shared["ready_upto"] < BLOCK - 4096  # the boundary is far away

        for _ in batches:
            pass
        others = Reader(first)
        rows = reading.end()[:SAMPLES]
        others.stop()
        assert rows == inline(ops, BLOCK, SAMPLES)
        assert sorted(index for index, _ in rows) == list(range(SAMPLES))

        stream = server.stream()  # the only one
        assert {job["stream"] for job in jobs(server).values()} == {stream["id"]}
        assert len(stream["lanes"]) == (1 if ops == OPS else 2)
        wait_until(lambda: is_full(server.stream()))
        status = server.status()
        (stream,) = status["streams"]
        assert stream["rows_filled"] == status["rows_filled"] - filled_before
        assert stream["ready_upto"] < stream["rows_filled"] <= stream["ready_upto"] + got + CHUNK


def is_full(stream: dict[str, Any]) -> bool:
    """Whether the window has no room for another chunk."""
    rows = min(lane["rows"] for lane in stream["lanes"])
    return bool(stream["position"] + rows - stream["ready_upto"] < CHUNK)


def test_a_joiner_goes_on_alone_when_the_job_it_awaits_leaves(
    new_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = unhurried(new_server)
    with client(server, "late", 128) as late:
        with client(server, "first", 128) as first:
            begin(server, first, 8)
            reading = Reader(late, 2048)
            wait_until(lambda: "reads a separate stream" in caplog.text, why=server.log)
        assert reading.end()[:2048] == inline(OPS, BLOCK, 2048)
        assert server.stream()["waits_for"] is None
        assert "goes on alone" in server.log()


def test_without_memory_for_its_own_ring_a_joiner_waits(new_server: Callable[..., Server]) -> None:
    server = new_server(memory="150K")
    with client(server, "first", 128) as first, client(server, "late", 128) as late:
        begin(server, first)
        assert len(late) == len(first)
        (stream,) = server.status()["streams"]
        assert [lane["jobs"] for lane in stream["lanes"]] == [2]
        assert late.state_dict()["position"] == BLOCK
        assert "no early start" in server.log()
