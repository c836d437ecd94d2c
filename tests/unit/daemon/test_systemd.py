"""What a service manager hears, over a real datagram socket."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepserver.daemon.systemd import Notifier
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        s.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
            monkeypatch.delenv(name, raising=False)
        yield s


def test_each_message_is_a_datagram_of_lines(manager: socket.socket) -> None:
    notifier = Notifier()
    notifier.send(READY="1", STATUS="2 workers, no jobs")
    notifier.send(STOPPING="1")
    assert [manager.recv(1024) for _ in range(2)] == [b"READY=1\nSTATUS=2 workers, no jobs", b"STOPPING=1"]


def test_children_do_not_inherit_the_address(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    Notifier()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)
    assert manager.fileno() >= 0


def test_an_abstract_address_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        name = f"prepserver-test-{os.getpid()}"
        s.bind("\0" + name)
        s.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        Notifier().send(READY="1")
        assert s.recv(1024) == b"READY=1"


def test_without_a_manager_nothing_is_said_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "5000000")
    notifier = Notifier()
    notifier.send(READY="1")
    assert notifier.watchdog_s is None


def test_a_manager_that_reads_nothing_holds_nobody_up(manager: socket.socket) -> None:
    notifier, waiting = Notifier(), 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
        other.setblocking(False)
        while True:
            other.sendto(b"x", manager.getsockname())
            waiting += 1
    notifier.send(WATCHDOG="1")
    notifier.send(STOPPING="1")
    assert {manager.recv(10) for _ in range(waiting)} == {b"x"}
    notifier.send(READY="1")
    assert manager.recv(10) == b"READY=1"


def test_a_manager_that_is_gone_does_no_harm(manager: socket.socket, tmp_path: Path) -> None:
    notifier = Notifier()
    manager.close()
    notifier.send(READY="1")
    (tmp_path / "notify").unlink()
    notifier.send(READY="1")
    assert notifier.watchdog_s is None


@pytest.mark.parametrize(
    ("usec", "pid", "wanted_s"),
    [
        ("5000000", None, 2.5),
        ("5000000", "self", 2.5),
        ("5000000", "1", None),
        ("soon", None, None),
        (None, None, None),
    ],
)
def test_signs_of_life_are_due_twice_in_the_time_asked_of_us(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, usec: str | None, pid: str | None, wanted_s: float | None
) -> None:
    if usec is not None:
        monkeypatch.setenv("WATCHDOG_USEC", usec)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "self" else pid)
    assert Notifier().watchdog_s == wanted_s
