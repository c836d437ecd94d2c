"""A connection on the attach socket, with a real socket on the other side."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepserver.daemon.attach import Listener, Peer
from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.messages import FROM_ATTACH, Bye, Moved, Ready


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


def test_the_last_word_of_a_client_with_unread_news_is_heard(pair: tuple[socket.socket, Peer]) -> None:
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


MOVED = [Moved(64 * number, {"number": number}) for number in range(3)]


def fill(peer: Peer) -> int:
    """Announces until the connection is full; how often."""
    count = 0
    while peer.send(Ready(count, [], 0)):
        count += 1
    return count


def drain(client: socket.socket, count: int) -> list[tuple[Any, list[int]]]:
    """The next messages, with the inodes of the descriptors that came with them."""
    found = []
    for _ in range(count):
        data, fds, _, _ = socket.recv_fds(client, 65536, 4)
        found.append((decode(data, FROM_ATTACH), [os.fstat(fd).st_ino for fd in fds]))
        for fd in fds:
            os.close(fd)
    return found


def test_what_finds_no_room_is_kept_in_order_with_descriptors(
    pair: tuple[socket.socket, Peer],
) -> None:
    client, peer = pair
    inodes = []
    announced = fill(peer)
    for message in MOVED:
        ring = os.memfd_create("ring")
        inodes.append(os.fstat(ring).st_ino)
        peer.send_or_keep(message, ring)
        os.close(ring)  # the daemon may have dropped it by the time that the client reads again
    assert peer.is_owed
    assert not peer.send_kept()
    assert [fds for _, fds in drain(client, announced)] == [[]] * announced
    assert peer.send_kept()
    assert not peer.is_owed
    assert drain(client, 3) == [(message, [inode]) for message, inode in zip(MOVED, inodes, strict=True)]


def test_what_was_kept_goes_with_the_connection(pair: tuple[socket.socket, Peer]) -> None:
    _, peer = pair
    fill(peer)
    ours, theirs = os.pipe()
    peer.send_or_keep(MOVED[0], theirs)
    os.close(theirs)
    peer.close()
    assert os.read(ours, 1) == b""  # nobody holds its other end
    os.close(ours)


def test_where_it_cannot_be_kept_the_connection_ends_for_both(pair: tuple[socket.socket, Peer]) -> None:
    client, peer = pair
    announced = fill(peer)
    with pytest.raises(OSError, match="Bad file"):
        peer.send_or_keep(MOVED[0], 10**6)
    peer.hang_up()
    assert peer.receive() is None
    drain(client, announced)
    assert client.recv(1) == b""
