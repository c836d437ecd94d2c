"""A remote worker in its bridge, with an actor of the test's own."""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepserver.engine.bridge import Bridge
from prepserver.memory.segment import create_segment
from prepserver.protocol import work
from prepserver.protocol.layout import RingLayout, ring_fields
from prepserver.telemetry.page import StatsPage, WorkerStats, create_page
from prepserver.worker.channel import close_all, pair, receive, send
from tests.support.remote import STAND_IN
from tests.support.waiting import wait_until

TICKET = 7
FIELDS = ring_fields((("image", "uint8", (3,)),))


class Actor:
    """Waits in `fill`, and then fails with `error`."""

    error: Exception
    go_on: threading.Event

    def about(self) -> tuple[str, int, str, str]:
        return "machine", os.getpid(), "native", ""

    def tell(self, *_: Any) -> None: ...

    def indices(self, _stream: int, position: int, count: int) -> list[int]:
        return list(range(position, position + count))

    def fill(self, _data: bytes) -> Any:
        self.go_on.wait()
        raise self.error


@pytest.fixture
def ray() -> Any:
    spec = importlib.util.spec_from_file_location("stand_in", STAND_IN / "ray.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        _, self.fds = receive(self.daemon, work.FROM_ZYGOTE)  # Spawned
        self.socks: list[socket.socket] = [self.daemon, daemon, self.line]

    def ended(self) -> tuple[int, WorkerStats]:
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
    fds = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [str(path) for path in fds if name in str(path)] + [
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


@pytest.mark.parametrize(
    ("kind", "text", "blamed"),
    [
        ("RayActorError", "The actor died because its node has died. Node Id: 7", False),
        ("ObjectLostError", "Failed to retrieve object", False),
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
    Actor.go_on.set()
    send(remote.line, work.Fill(1, 1, [1], 5, 2, alone=True))
    status, page = remote.ended()
    assert page.busy == blamed
    assert (page.index == 5 and status == -6) == blamed
