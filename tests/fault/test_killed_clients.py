"""A client may die, stop or vanish at any moment: the others continue, and its rows are released."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from prepclient import Joining, PrepClient, RandomResizedCrop, Sharding, SyntheticImages
from prepserver.pipeline.sources import ImageFolder
from tests.support.clients import OPS, ClientProcess, Rows, inline_rows, read
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault

Start = Callable[..., ClientProcess]
COUNT = 1500
SPEC: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 30}


@pytest.fixture(scope="module")
def expected(tree: ImageFolder) -> Rows:
    return inline_rows(tree, epochs=2, **SPEC)


def attached(server: Server, *clients: ClientProcess) -> None:
    for client in clients:
        client.ask("attach")
    assert {job["pid"] for job in server.status()["jobs"]} == {client.pid for client in clients}


@pytest.mark.parametrize("zero_copy", [False, True])
def test_a_client_killed_in_mid_batch_holds_nobody_back(
    server: Server, client_process: Start, tree: ImageFolder, expected: Rows, zero_copy: bool
) -> None:
    victim = client_process(server, tree, zero_copy=zero_copy, **SPEC)
    other = client_process(server, tree, **SPEC)
    attached(server, victim, other)
    assert victim.read(3) == expected[:90]
    before = server.stream()
    assert [lane["jobs"] for lane in before["lanes"]] == [2]
    victim.kill()
    wait_until(lambda: [job["pid"] for job in server.status()["jobs"]] == [other.pid], why=server.log)
    # More than two rings of rows: the dead one's place is really gone.
    assert other.read() + other.read() == expected
    other.ask("close")


def test_the_memory_of_the_last_client_goes_with_it(server: Server, client_process: Start, tree: ImageFolder) -> None:
    clients = [client_process(server, tree, [RandomResizedCrop(n)], shuffle=True, batch_size=30) for n in (16, 24, 40)]
    attached(server, *clients)
    held = server.look()
    assert held.rings == 3
    assert len(server.seen_rings) >= 3
    clients[0].kill()
    wait_until(lambda: server.look().rings == 2, why=server.log)
    clients[1].kill()
    clients[2].kill()
    wait_until(lambda: server.look().rings == 0, why=server.log)
    assert server.status()["memory"]["rings_bytes"] == 0


def test_clients_killed_at_any_moment_of_attaching_leave_nothing(
    server: Server, client_process: Start, tree: ImageFolder
) -> None:
    for lines in range(3):  # before, during and right after the answer
        client = client_process(server, tree, **SPEC)
        client.order("read")
        for _ in range(lines):
            client.line()
        client.kill()
    wait_until(lambda: server.status()["jobs"] == [], why=server.log)


def test_a_stopped_client_makes_others_wait_and_loses_nothing(
    server: Server, client_process: Start, tree: ImageFolder, expected: Rows
) -> None:
    stopped = client_process(server, tree, **SPEC)
    other = client_process(server, tree, **SPEC)
    attached(server, stopped, other)
    rows = stopped.read(3)
    stopped.kill(signal.SIGSTOP)
    wait_until(stopped.stopped)
    other.order("read")
    seen: Rows = []
    while len(seen) < 450:  # what the ring holds beyond the stopped one
        seen += other.batch()
    # Nothing is written over the rows that the stopped one has not read.
    stream = server.stream()
    assert stream["position"] in (60, 90)  # its last message may have been stopped with it
    assert stream["ready_upto"] <= stream["position"] + stream["lanes"][0]["rows"]
    stopped.order("read")
    stopped.kill(signal.SIGCONT)
    rows += stopped.collect()
    seen += other.collect()
    assert rows == seen == expected[:COUNT]
    for client in (stopped, other):
        client.order("read")
    assert [client.collect() for client in (stopped, other)] == [expected[COUNT:]] * 2
    for client in (stopped, other):
        client.ask("close")


def test_a_client_stopped_for_long_learns_it_was_left_behind(
    new_server: Callable[..., Server], client_process: Start
) -> None:
    """By then its connection is full of announcements, so the daemon cannot send more at once."""
    server = new_server(settings={"chunk_rows": 1})
    source = SyntheticImages(2000, size=(48, 64))
    spec: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 2}
    stopped, other = (
        client_process(server, source, joining=Joining(lag="detach"), prefetch=1600, **spec) for _ in range(2)
    )
    attached(server, stopped, other)
    rows = stopped.read(1)
    stopped.kill(signal.SIGSTOP)
    wait_until(stopped.stopped)
    seen = other.read()
    assert len(server.status()["streams"]) == 2
    stopped.order("read")
    stopped.kill(signal.SIGCONT)
    rows += stopped.collect()
    assert rows == seen == inline_rows(source, **spec)
    for client in (stopped, other):
        client.ask("close")


def test_a_stopped_client_that_is_killed_lets_the_others_go_on(
    server: Server, client_process: Start, tree: ImageFolder, expected: Rows
) -> None:
    stopped = client_process(server, tree, **SPEC)
    other = client_process(server, tree, **SPEC)
    attached(server, stopped, other)
    stopped.kill(signal.SIGSTOP)
    wait_until(stopped.stopped)
    other.order("read")
    seen = [row for _ in range(15) for row in other.batch()]
    stopped.kill()
    seen += other.collect()
    assert seen == expected[:COUNT]
    other.ask("close")


def test_a_rank_that_dies_holds_no_place_for_ever(server: Server, client_process: Start, tree: ImageFolder) -> None:
    ranks = [client_process(server, tree, sharding=Sharding(r, 2), job="pair", **SPEC) for r in range(2)]
    attached(server, *ranks)
    ranks[1].kill()
    wait_until(lambda: len(server.status()["jobs"]) == 1, why=server.log)
    rows = ranks[0].read()
    assert len(rows) == COUNT // 2
    ranks[0].kill()
    wait_until(lambda: server.status()["jobs"] == [], why=server.log)
    # The pair starts again, as a restarted run does.
    again = [client_process(server, tree, sharding=Sharding(r, 2), job="pair", **SPEC) for r in range(2)]
    for client in again:
        client.order("read")
    whole = [row for client in again for row in client.collect()]
    assert sorted(index for index, _ in whole) == list(range(COUNT))
    for client in again:
        client.ask("close")


def test_a_write_into_a_view_ends_its_process_only(
    server: Server, client_process: Start, tree: ImageFolder, expected: Rows
) -> None:
    other = client_process(server, tree, **SPEC)
    culprit = client_process(server, tree, zero_copy=True, **SPEC)
    attached(server, other, culprit)
    assert culprit.read(2) == expected[:60]
    culprit.order("write")
    with pytest.raises(EOFError):
        culprit.line()
    assert culprit.process.wait() == -signal.SIGSEGV
    assert other.read() == expected[:COUNT]
    other.ask("close")


def test_a_write_into_a_fresh_batch_reaches_nobody_else(
    server: Server, client_process: Start, tree: ImageFolder, expected: Rows
) -> None:
    clients = [client_process(server, tree, **SPEC) for _ in range(2)]
    attached(server, *clients)
    assert clients[0].read(2) == expected[:60]
    clients[0].ask("write")
    assert clients[1].read(4) == expected[:120]
    assert clients[0].read(2) == expected[60:120]
    for client in clients:
        client.ask("close")


def test_closing_a_client_in_the_middle_frees_its_rows(server: Server, tree: ImageFolder, expected: Rows) -> None:
    for _ in range(5):
        with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
            assert read(client, batches=2) == expected[:60]
        wait_until(lambda: server.status()["streams"] == [], why=server.log)
