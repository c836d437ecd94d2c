"""A pool that grows and shrinks while jobs read: every sample once, the bytes of inline, and workers that finish."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from prepclient import Joining, PrepClient, SyntheticImages
from tests.support.clients import OPS, inline_rows, rows_of
from tests.support.server import Server, cli
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SOURCE = SyntheticImages(400, size=(48, 64))


@pytest.fixture(scope="module")
def resized() -> Iterator[Server]:
    server = Server(workers=1, settings={"chunk_rows": 4})
    server._arguments = [a for a in server._arguments if a not in ("--workers", "1")]  # the file says it
    try:
        yield set_workers(server, 1).start()
    finally:
        server.stop()
        server.discard()


def set_workers(server: Server, workers: int | str) -> Server:
    config = server.home / "config.toml"
    config.write_text(f"chunk_rows = 4\nworkers = {json.dumps(workers)}\n")
    if server._process is not None:
        os.kill(server.pid, signal.SIGHUP)
    return server


def test_rows_are_the_same_while_workers_come_and_go(resized: Server) -> None:
    """A headspace amid it all takes no sample from the stream, as the audit of the daemon's log proves."""
    with PrepClient(
        SOURCE, OPS, batch_size=8, shuffle=True, seed=5, fields="dict", runtime_dir=resized.runtime_dir,
        joining=Joining(start="first"), job="resized", prefetch=16, headspace=7,
    ) as train:  # fmt: skip
        had, replays, sizes = [], range(17, 24), {0: 3, 25: 1, 35: 4, 45: 2}
        for number, batch in enumerate(train):
            if number in sizes:
                set_workers(resized, sizes[number])
                wait_until(lambda number=number: len(resized.workers()) == sizes[number], why=resized.log)  # type: ignore[misc]
            if number not in replays:
                had += rows_of(batch)
    assert had == inline_rows(SOURCE, epochs=1, ops=OPS, batch_size=8, shuffle=True, seed=5)
    log = resized.log()
    for change in ("3 workers instead of 1", "1 workers instead of 3", "2 workers instead of 4"):
        assert f"{change}: the settings were read again" in log
    assert "ended: " not in log  # nothing was killed at work
    proof = cli("audit", "resized", "--cache-dir", str(resized.home / "cache"))
    assert proof.returncode == 0, proof.stdout + proof.stderr


def test_auto_is_a_number_that_may_change(resized: Server) -> None:
    set_workers(resized, "auto")
    wait_until(lambda: "reloaded: workers" in resized.log().splitlines()[-1], why=resized.log)
    assert resized.status()["state"] == "running"
