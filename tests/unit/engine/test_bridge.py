"""A remote worker in its bridge, with an actor of the test's own."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepserver.engine.bridge import Bridge
from prepserver.engine.line import TcpLine, TcpListener
from prepserver.memory.passing import close_all
from prepserver.memory.segment import create_segment
from prepserver.protocol import work
from prepserver.protocol.layout import RingLayout, ring_fields
from prepserver.telemetry.page import SEVERAL, StatsPage, WorkerStats, create_page
from prepserver.worker.channel import pair, receive, send
from tests.support import leaks
from tests.support.remote import STAND_IN
from tests.support.waiting import wait_until

TICKET = 7
FIELDS = ring_fields((("image", "uint8", (3,)),))


class Actor:
    """Begins with sample 5 of a task, may say that it is done, waits, and then fails with `error`."""

    error: Exception = RuntimeError("died")
    done: work.Filled | None = None
    go_on: threading.Event

    def __init__(self) -> None:
        self._listener = TcpListener("127.0.0.1")

    def about(self) -> Any:
        return "machine", os.getpid(), "native", "", self._listener.address, self._listener.token

    def serve(self) -> None:
        line = self._listener.accept()
        try:
            while isinstance(message := line.receive(work.TO_WORKER), work.AddLane):
                pass
            if getattr(message, "alone", False):
                line.send(work.At(5, 5))
                if self.done is not None:
                    line.send(self.done)  # without its rows
            self.go_on.wait()
            raise self.error
        finally:
            line.close()


@pytest.fixture
def ray() -> Iterator[Any]:
    """The stand-in; no thread of its actors or of a bridge closes descriptors in a later test."""
    threads = threading.active_count()
    spec = importlib.util.spec_from_file_location("stand_in", STAND_IN / "ray.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    wait_until(lambda: threading.active_count() <= threads, why=threading.enumerate)


class Remote:
    """The daemon's side of one remote worker."""

    def __init__(self, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        Actor.go_on = threading.Event()
        monkeypatch.setattr("prepserver.engine.actor.RowActor", Actor)
        self.daemon, daemon = pair()
        self.line, line = pair()
        page = create_page("test")
        self.page = StatsPage(page, writable=False)
        Bridge(ray, daemon, ()).spawn(work.Spawn(TICKET, 0, "worker"), [line.detach(), os.dup(page)])
        os.close(page)
        self.said, self.fds = receive(self.daemon, work.FROM_ZYGOTE)
        self.socks: list[socket.socket] = [self.daemon, daemon, self.line]

    def ended(self) -> tuple[int | None, WorkerStats]:
        """Its status, and its page then."""
        message, _ = receive(self.daemon, work.FROM_ZYGOTE)
        assert isinstance(message, work.Exited)
        return message.status, self.page.read()


@pytest.fixture
def remote(ray: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    made = Remote(ray, monkeypatch)
    yield made
    Actor.go_on.set()
    close_all(made.fds)
    for sock in made.socks:
        sock.close()


def held(name: str) -> list[str]:
    """What this process holds of a segment: descriptors and mappings."""
    return [kind for kind in leaks.fds(os.getpid()) if name in kind] + [
        line for line in Path("/proc/self/maps").read_text().splitlines() if name in line
    ]


def test_an_actor_that_dies_leaves_no_ring_that_waited(remote: Remote) -> None:
    """A ring that is held is memory of the daemon's budget, and the bridge lives on."""
    Actor.error = RuntimeError("died")
    layout = RingLayout(4, FIELDS)
    ring = create_segment("waited", layout.nbytes)
    send(remote.line, work.Fill(1, 1, [1], 0, 2))
    send(remote.line, work.AddLane(2, 1, [], layout.to_wire()), [ring])
    os.close(ring)
    wait_until(lambda: held("waited"))  # the bridge has it, behind the task
    Actor.go_on.set()
    remote.ended()
    wait_until(lambda: not held("waited"), why=lambda: held("waited"))


def test_an_idle_actor_that_dies_is_missed_at_once(ray: Any, remote: Remote) -> None:
    Actor.error = ray.exceptions.RayActorError("The actor is dead because its worker process has died")
    Actor.go_on.set()
    send(remote.line, work.DropStream(1))  # which nobody answers
    assert not remote.ended()[1].busy


@pytest.mark.parametrize(
    ("kind", "text", "blamed"),
    [
        ("RayActorError", "The actor died because its node has died. Node Id: 7", False),
        ("ActorUnavailableError", "The actor 7 is unavailable: RpcError: failed to connect", False),
        ("RayActorError", "The actor is dead because its worker process has died", True),
        ("OutOfMemoryError", "1 worker(s) were killed due to the node running low on memory", True),
        ("KeyError", "on node-7", True),
    ],
)
def test_a_sample_is_blamed_unless_its_machine_died(
    ray: Any, remote: Remote, kind: str, text: str, blamed: bool
) -> None:
    """One that needs all memory of a machine would kill actors for ever if nobody counted it."""
    Actor.error = getattr(ray.exceptions, kind, RuntimeError)(text)
    send(remote.line, work.Fill(1, 1, [1], 5, 2, alone=True))
    wait_until(lambda: remote.page.read().busy)
    Actor.go_on.set()
    status, page = remote.ended()
    assert page.busy == blamed
    assert (page.index == 5 and status == -6) == blamed


def test_no_sample_is_blamed_for_a_slow_network(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Actor, "done", work.Filled(1, [], 0, 0))
    layout = RingLayout(4, FIELDS)
    ring = create_segment("test", layout.nbytes)
    send(remote.line, work.AddLane(1, 1, [], layout.to_wire()), [ring])
    os.close(ring)
    send(remote.line, work.Fill(1, 1, [1], 5, 2, alone=True))
    wait_until(lambda: remote.page.read().busy)
    wait_until(lambda: remote.page.read().index == SEVERAL)
    Actor.go_on.set()
    remote.ended()


def test_a_line_is_closed_by_the_thread_that_reads_it(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor's number may be that of another line a moment later."""
    closed = []
    close = TcpLine.close
    monkeypatch.setattr(TcpLine, "close", lambda line: (closed.append(threading.current_thread().name), close(line))[1])
    send(remote.line, work.Fill(1, 1, [1], 5, 2, alone=True))
    wait_until(lambda: remote.page.read().busy)
    remote.line.shutdown(socket.SHUT_RDWR)
    remote.ended()
    wait_until(lambda: closed)
    assert not any("_pass_on" in name for name in closed)


def test_a_worker_without_descriptors_is_not_waited_for(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def pipe() -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", pipe)
    made = Remote(ray, monkeypatch)
    assert made.said.status is None
    assert "Too many open files" in made.said.reason
    Actor.go_on.set()
    for sock in made.socks:
        sock.close()


def test_a_listing_that_was_made_again_is_sent_again(ray: Any, tmp_path: Path) -> None:
    """A damaged one is removed. One that is missing ends no worker: others need it."""
    daemon, _theirs = pair()
    with daemon, _theirs:
        bridge = Bridge(ray, daemon, ())
        path = tmp_path / "a.idx"
        add = work.AddStream(1, {}, str(path), "full", 3)
        path.write_bytes(b"damaged")
        assert bytes(bridge.listing(add)) == b"damaged"
        path.unlink()
        assert bridge.listing(add) is None
        path.write_bytes(b"whole")
        assert bytes(bridge.listing(add)) == b"whole"
