"""The daemon may be killed: its clients notice, nothing remains of it, and a new one continues with the same bytes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from prepclient import Joining, PrepClient, ServerGone
from prepserver.cli import exits
from prepserver.pipeline.sources import ImageFolder
from tests.support import leaks
from tests.support.clients import OPS, ClientError, ClientProcess, Rows, inline_rows, read, rows_of
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.fault

Start = Callable[..., ClientProcess]
COUNT = 1500
SPEC: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 30}
TOLD = {"reconnect_s": 0, **SPEC}  # rather an error than waiting for the daemon to come back


def _read_to_the_end(client: ClientProcess, rows: Rows) -> None:
    while True:
        rows += client.batch()


def test_a_killed_daemon_leaves_no_worker_and_no_memory(
    server: Server, client_process: Start, tree: ImageFolder
) -> None:
    """Its clients are told that it is gone."""
    clients = [client_process(server, tree, zero_copy=zero, **TOLD) for zero in (False, True)]
    for client in clients:
        client.ask("attach")
    expected = inline_rows(tree, **SPEC)
    got = [client.read(3) for client in clients]
    server.kill()
    assert server.seen_rings
    wait_until(lambda: leaks.marked(server.mark) == {}, why=lambda: leaks.marked(server.mark))
    # Clients still map their ring; nobody else does.
    assert set(leaks.holders(server.seen_rings)) == {client.pid for client in clients}
    states = []
    for client, rows in zip(clients, got, strict=True):
        client.order("read")
        with pytest.raises(ClientError) as gone:
            _read_to_the_end(client, rows)
        assert gone.value.kind == "ServerGone"
        for word in (str(server.runtime_dir), "prepserver start", "state_dict()"):
            assert word in gone.value.text
        assert rows == expected[: len(rows)]
        states.append(client.ask("state"))
        client.ask("drop")  # a view keeps the memory of a daemon that is gone
    # What was ready in the ring was still to be had, and the state is right behind it.
    assert [state["position"] for state in states] == [len(rows) for rows in got]
    wait_until(lambda: leaks.holders(server.seen_rings) == {}, why=lambda: leaks.holders(server.seen_rings))
    server.start()
    for client, state in zip(clients, states, strict=True):
        client.ask("load", state=state)
        client.order("read", new=True)
    for client, rows in zip(clients, got, strict=True):
        rows += client.collect()
        assert rows == expected
    for client in clients:
        client.ask("close")


def test_a_client_goes_on_by_itself_with_a_new_daemon(server: Server, tree: ImageFolder) -> None:
    expected = inline_rows(tree, **SPEC)
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        rows = read(client, batches=2)
        state = client.state_dict()
        server.kill()
        client.load_state_dict(state)
        server.start()
        rows += read(client)
    assert rows == expected


def test_a_killed_daemon_in_mid_wait_is_noticed_at_once(server: Server, tree: ImageFolder) -> None:
    for worker in server.workers():
        os.kill(worker, signal.SIGSTOP)  # no row will ever come
        wait_until(partial(leaks.stopped, worker))
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **TOLD) as client:
        len(client)
        server.look()
        server.process.kill()
        with pytest.raises(ServerGone, match="prepserver start"):
            next(iter(client))
        server.process.wait()
        wait_until(lambda: leaks.marked(server.mark) == {}, why=lambda: leaks.marked(server.mark))
        server.start()
        assert [row for batch in client for row in rows_of(batch)] == inline_rows(tree, **SPEC)


def test_ready_rows_stay_as_they_are_when_the_daemon_ends(
    new_server: Callable[..., Server], client_process: Start, tree: ImageFolder
) -> None:
    """When it ends, a job's rows must not be reused for others while its client still reads."""
    server = new_server(workers=2, settings={"drain_s": 0.0})
    slow, quick = (client_process(server, tree, joining=Joining(lag="wait"), **TOLD) for _ in range(2))
    for client in (slow, quick):
        client.ask("attach")
    rows = slow.read(1)
    quick.order("read")
    wait_until(lambda: any("job" in str(job["waits_for"]) for job in server.status()["jobs"]), why=server.status)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE_S) == exits.OK
    slow.order("read")
    with pytest.raises(ClientError, match="ServerGone"):
        _read_to_the_end(slow, rows)
    assert len(rows) > 300
    assert rows == inline_rows(tree, **SPEC)[: len(rows)]


def test_an_epoch_begun_while_the_daemon_restarts_waits_for_it(
    server: Server, client_process: Start, tree: ImageFolder
) -> None:
    client = client_process(server, tree, **SPEC)
    client.read(2)
    server.kill()
    client.order("set_epoch", epoch=0)  # it lets go of its place, and asks for another
    server.start()
    client.answer()
    client.order("read")
    assert client.collect() == inline_rows(tree, **SPEC)
    client.ask("close")


def test_clients_wait_for_the_next_daemon_and_get_the_same_bytes(
    server: Server, client_process: Start, tree: ImageFolder
) -> None:
    """They get the bytes that the killed daemon would have given them."""
    clients = [client_process(server, tree, shuffle=True, seed=4, batch_size=size) for size in (30, 77)]
    for client in clients:
        client.ask("attach")
    rows = [client.read(2) for client in clients]
    for _ in range(2):
        for client in clients:
            client.order("read")
        for number, client in enumerate(clients):
            rows[number] += client.batch()
        server.kill()
        wait_until(lambda: leaks.marked(server.mark) == {}, why=lambda: leaks.marked(server.mark))
        server.start()
        for number, client in enumerate(clients):
            rows[number] += client.collect()
    assert rows == [inline_rows(tree, epochs=2, **SPEC)] * 2
    for client in clients:
        client.ask("close")
