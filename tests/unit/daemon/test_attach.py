"""A connection on the attach socket, with a real socket on the other side."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepserver.daemon.attach import Listener, Peer
from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.codec import encode
from prepserver.protocol.messages import Bye, Ready


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[socket.socket, Peer]]:
    listener = Listener(tmp_path / "attach.sock", Door())
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(os.fspath(tmp_path / "attach.sock"))
    peer = listener.accept()
    assert peer is not None
    yield client, peer
    client.close()
    peer.close()
    listener.close()


def test_the_last_word_of_a_client_that_left_announcements_unread_is_heard(pair: tuple[socket.socket, Peer]) -> None:
    client, peer = pair
    assert peer.send(Ready(64, [], 0))
    client.send(encode(Bye(64)))
    client.close()
    assert peer.receive() == Bye(64)
    assert peer.receive() is None


def test_the_end_of_a_client_that_said_nothing_is_the_end(pair: tuple[socket.socket, Peer]) -> None:
    client, peer = pair
    assert peer.send(Ready(64, [], 0))
    with pytest.raises(BlockingIOError):
        peer.receive()
    client.close()
    assert peer.receive() is None
