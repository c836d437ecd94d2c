"""Lines, with libzmq on the other end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from prepserver.daemon import line as line_room
from prepserver.daemon.line import Line, open_line
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.messages import FROM_DAEMON, TO_DAEMON, Ready, Sync
from prepserver.protocol.schema import ProtocolError
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Line, zmq.Socket[bytes]]]:
    line, listener = open_line(tmp_path / "line.sock", TO_DAEMON)
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    with dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        dealer.setsockopt(zmq.SNDTIMEO, int(PATIENCE_S * 1000))
        dealer.setsockopt(zmq.RCVHWM, 10)
        dealer.setsockopt(zmq.USE_FD, listener.detach())
        dealer.bind("ipc://line")
        yield line, dealer
    line.close()


def heard(line: Line) -> Any:
    found: list[Any] = []

    def listen() -> bool:
        try:
            found.append(line.receive())
        except BlockingIOError:
            return False
        return True

    wait_until(listen)
    return found[0]


def test_both_ends_hear_each_message_in_its_order(ends: tuple[Line, zmq.Socket[bytes]]) -> None:
    line, dealer = ends
    line.send(Ready(0))  # kept until the other end is there
    for number in range(100):
        dealer.send(encode(Sync(number)))
        assert heard(line) == Sync(number)
        assert line.send(Ready(number + 1, [(number, 0, "x" * 500)]))
    for number in range(101):
        assert decode(dealer.recv(), FROM_DAEMON).upto == number


def test_nothing_is_left_that_anybody_could_connect_to(ends: tuple[Line, zmq.Socket[bytes]], tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_line_comes_after_the_last_word(ends: tuple[Line, zmq.Socket[bytes]]) -> None:
    line, dealer = ends
    dealer.send(encode(Sync(5)))
    assert heard(line) == Sync(5)
    dealer.close()
    assert heard(line) is None


def test_a_message_of_several_parts_is_refused(ends: tuple[Line, zmq.Socket[bytes]]) -> None:
    line, dealer = ends
    dealer.send_multipart([encode(Sync(0)), b"more"])
    with pytest.raises(ProtocolError, match="one part"):
        heard(line)


def test_what_finds_no_room_comes_later(ends: tuple[Line, zmq.Socket[bytes]]) -> None:
    line, dealer = ends
    dealer.send(encode(Sync(0)))
    heard(line)
    count = 0
    while not line.is_behind:
        assert line.send(Ready(count, [(0, 0, "x" * 500)] * 50))
        count += 1
    line.send(Ready(count))
    for number in range(count + 1):
        line.flush()
        assert decode(dealer.recv(), FROM_DAEMON).upto == number
    assert not line.is_behind


def test_one_who_leaves_too_much_unread_is_noticed(
    ends: tuple[Line, zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_room, "UNREAD_MOST_BYTES", 100_000)
    line, dealer = ends
    dealer.send(encode(Sync(0)))
    heard(line)
    while line.send(Ready(0, [(0, 0, "x" * 500)] * 50)):
        pass
    assert line.is_behind
