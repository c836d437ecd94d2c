"""Workers and their parent may die at any moment: the stream's bytes do not change, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from prepclient import PrepClient
from prepserver.pipeline.sources import ImageFolder
from tests.support import leaks
from tests.support.clients import OPS, ClientProcess, Rows, inline_rows, read, rows_of
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault

Start = Callable[..., ClientProcess]
COUNT = 1500
SPEC: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 30}


@pytest.fixture(scope="module")
def expected(tree: ImageFolder) -> Rows:
    return inline_rows(tree, epochs=2, **SPEC)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def stop(pid: int) -> None:
    kill(pid, signal.SIGSTOP)
    wait_until(lambda: leaks.stopped(pid))


def full_strength(server: Server, *dead: int) -> None:
    """Waits until both workers are up, and none of them is one of the dead."""
    wait_until(lambda: len(set(server.workers()) - {*dead}) == 2, why=server.log)


def test_a_worker_killed_with_rows_in_its_hands_loses_none(
    server: Server, client_process: Start, tree: ImageFolder, expected: Rows
) -> None:
    first, second = server.workers()
    client = client_process(server, tree, **SPEC)
    rows = client.read(2)
    wait_until(lambda: server.stream()["ready_upto"] >= 512, why=server.stream)
    # Both hold work and do not move: whatever is given to them now is in the hands of one that will die.
    stop(first)
    stop(second)
    client.order("read")
    while len(rows) < 480:  # what its ring held
        rows += client.batch()
    # Else the worker in the first one's place could find the second one's chunk late, and make it again.
    kill(second, signal.SIGCONT)
    wait_until(lambda: "idle" in [w["state"] for w in server.status()["workers"] if w["pid"] == second], why=server.log)
    kill(first)
    wait_until(lambda: leaks.gone(first))
    rows += client.collect()
    rows += client.read()
    assert rows == expected
    full_strength(server)
    assert second in server.workers()
    assert first not in server.workers()
    assert sum(worker["restarts"] for worker in server.status()["workers"]) == 1
    assert server.status()["quarantined"] == {}
    client.ask("close")


def test_workers_killed_again_and_again_change_no_byte(server: Server, tree: ImageFolder, expected: Rows) -> None:
    def restarts() -> int:
        return sum(worker["restarts"] for worker in server.status()["workers"])

    before = restarts()
    rows: Rows = []
    killed: set[int] = set()
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        for _ in range(2):
            for number, batch in enumerate(client):
                rows += rows_of(batch)
                if number % 12 == 3:  # a dead one is listed until the daemon has heard of it
                    pid, *_ = wait_until(lambda: [pid for pid in server.workers() if pid not in killed], why=server.log)
                    kill(pid)
                    killed.add(pid)
        assert client.stats()["bad_samples"] == 0
    assert rows == expected
    assert len(killed) == 8
    wait_until(lambda: restarts() - before >= len(killed))  # the daemon may not have heard of the last one yet
    full_strength(server)
    assert restarts() - before == len(killed)


def test_a_worker_that_has_worked_is_replaced_at_once(
    new_server: Callable[..., Server], tree: ImageFolder, expected: Rows
) -> None:
    """It does not matter how many workers died before it."""
    server = new_server(workers=1)
    log = server.log
    rows: Rows = []
    kills = 0
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, prefetch=60, **SPEC) as client:
        for _ in range(2):
            for number, batch in enumerate(client):
                rows += rows_of(batch)
                if number % 8 == 7:
                    (pid,) = wait_until(server.workers, why=log)
                    kill(pid)
                    kills += 1
    assert rows == expected
    assert kills > 10  # with a backoff that doubles from 0.1 s on the last one would have waited for a minute
    wait_until(lambda: server.status()["workers"][0]["restarts"] == kills, why=log)


def test_all_workers_killed_at_once_lose_nothing(server: Server, tree: ImageFolder, expected: Rows) -> None:
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        rows = read(client, batches=1)
        old = server.workers()
        for pid in old:
            kill(pid)
        client.set_epoch(0)
        rows = read(client) + read(client)
    assert rows == expected
    full_strength(server, *old)


def test_a_killed_zygote_takes_its_workers_and_a_new_one_goes_on(
    server: Server, client_process: Start, tree: ImageFolder, expected: Rows
) -> None:
    client = client_process(server, tree, **SPEC)
    rows = client.read(2)
    zygote, old = server.zygote, server.workers()
    kill(zygote)
    rows += client.read()
    rows += client.read()
    assert rows == expected
    full_strength(server, *old)
    wait_until(lambda: all(map(leaks.gone, (zygote, *old))))
    assert server.zygote != zygote
    client.ask("close")


def test_a_job_that_attaches_while_the_zygote_dies_waits(
    server: Server, client_process: Start, tree: ImageFolder, expected: Rows
) -> None:
    zygote = server.zygote
    full_strength(server)
    wait_until(lambda: not server.status()["jobs"])  # the test before leaves one that is going
    stop(zygote)
    sockets = server.settled().fds["socket"]
    client = client_process(server, tree, **SPEC)
    client.order("read")
    # its connection, and the line to an indexer that nobody forks
    wait_until(lambda: leaks.fds(server.pid)["socket"] >= sockets + 2)
    kill(zygote)
    assert client.collect() == expected[:COUNT]
    full_strength(server)
    client.ask("close")


def test_a_worker_killed_while_nobody_works_is_replaced(server: Server) -> None:
    first, second = server.workers()
    kill(first)
    full_strength(server, first)
    assert second in server.workers()
