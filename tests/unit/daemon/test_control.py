"""Control lines, with real sockets on both ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from prepserver.daemon.control import Control
from prepserver.daemon.poll import Poll
from prepserver.protocol.codec import encode
from prepserver.protocol.messages import Hello, Sync
from prepserver.protocol.schema import ProtocolError
from tests.support.waiting import wait_until


@pytest.fixture
def poll() -> Iterator[Poll]:
    made = Poll()
    yield made
    made.close()


@pytest.fixture
def control(tmp_path: Path, poll: Poll) -> Iterator[Control]:
    made = Control(tmp_path / "ctl.sock", 8, poll)
    yield made
    made.close()


def client(line: int) -> zmq.Socket[bytes]:
    sock: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    sock.setsockopt(zmq.USE_FD, line)
    sock.setsockopt(zmq.LINGER, 0)
    sock.bind("ipc://line")
    return sock


def heard(control: Control, poll: Poll) -> list[Any]:
    found: list[Any] = []

    def listen() -> bool:
        poll.run_once(0.01)
        found.extend(received for received in control.receive())
        return bool(found)

    wait_until(listen)
    return found


def test_each_client_has_a_line_that_says_who_it_is(control: Control, poll: Poll) -> None:
    with client(control.open(1)) as one, client(control.open(2)) as other:
        one.send(encode(Hello(5)))
        assert heard(control, poll) == [(1, Hello(5))]
        other.send(encode(Sync(7)))
        assert heard(control, poll) == [(2, Sync(7))]


def test_the_directory_keeps_nothing_to_connect_to(control: Control, tmp_path: Path) -> None:
    os.close(control.open(1))
    assert list(tmp_path.iterdir()) == []


def test_the_daemon_connects_once(control: Control) -> None:
    with socket.socket(fileno=control.open(1)) as listener:
        listener.settimeout(10)
        first, _ = listener.accept()
        first.close()
        listener.settimeout(0.5)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_of_many_messages_the_last_is_heard(control: Control, poll: Poll) -> None:
    with client(control.open(1)) as one:
        for number in range(5000):
            one.send(encode(Sync(number)))
        got = heard(control, poll)
        while got[-1] != (1, Sync(4999)):
            one.send(encode(Sync(4999)))  # one that comes at the moment of a read may be lost
            got += heard(control, poll)
        assert len(got) < 5000


def test_noise_is_reported_and_a_line_that_is_shut_says_nothing(control: Control, poll: Poll) -> None:
    with client(control.open(1)) as one:
        one.send(b"\xc1")
        ((cursor, message),) = heard(control, poll)
        assert cursor == 1
        assert isinstance(message, ProtocolError)
        one.send(encode(Hello(0)))
        control.shut(1)
        control.shut(1)
        assert list(control.receive()) == []


def test_more_lines_than_sockets_are_refused(control: Control) -> None:
    def open_all() -> None:
        for cursor in range(100):
            os.close(control.open(cursor))

    with pytest.raises(OSError, match="Too many open files"):
        open_all()
