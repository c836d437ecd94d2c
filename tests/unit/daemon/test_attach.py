"""A connection on the attach socket, with a real socket on the other side."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepserver.daemon.attach import OUT_OF_DESCRIPTORS, Listener, Peer
from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.codec import decode
from prepserver.protocol.messages import FROM_LEASE, Descriptor, Ready


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


def test_descriptors_come_with_their_numbers(pair: tuple[socket.socket, Peer], tmp_path: Path) -> None:
    client, peer = pair
    peer.open(tmp_path / "line.sock")
    inodes = []
    for number in (1, 2):
        ring = os.memfd_create("ring")
        inodes.append(os.fstat(ring).st_ino)
        assert peer.give(ring) == number
        os.close(ring)  # the daemon may have dropped it by the time that the client takes it
    found = []
    for number in range(3):
        data, (fd,), _, _ = socket.recv_fds(client, 65536, 4)
        assert decode(data, FROM_LEASE) == Descriptor(number)
        found.append(os.fstat(fd).st_ino)
        os.close(fd)
    assert found[1:] == inodes


def test_a_lease_that_is_full_takes_no_more(pair: tuple[socket.socket, Peer]) -> None:
    """Its client takes none of its rings, and must attach again."""
    _, peer = pair
    with open(os.devnull) as file:

        def give_for_ever() -> None:
            while True:
                peer.give(file.fileno())

        with pytest.raises(BlockingIOError):
            give_for_ever()


def test_one_without_a_line_is_refused_on_its_lease(pair: tuple[socket.socket, Peer]) -> None:
    client, peer = pair
    assert not peer.send(Ready(64))
    peer.turn_away(OUT_OF_DESCRIPTORS)
    peer.close()
    assert not peer.is_listening
    assert decode(client.recv(65536), FROM_LEASE) == OUT_OF_DESCRIPTORS
    assert client.recv(1) == b""


def test_without_descriptors_clients_are_refused_again_and_again(tmp_path: Path) -> None:
    """Also after a look at an empty queue, which the listener takes whenever a client got the last descriptor."""
    listener = Listener(tmp_path / "attach.sock", Door())
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        assert listener.accept() is None
        for client in clients:
            client.connect(os.fspath(tmp_path / "attach.sock"))
            assert listener.accept() is None
            assert decode(client.recv(65536, socket.MSG_DONTWAIT), FROM_LEASE) == OUT_OF_DESCRIPTORS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        listener.close()
        for client in clients:
            client.close()
