from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from prepserver.protocol.codec import MAX_MESSAGE_BYTES
from prepserver.protocol.schema import ProtocolError
from prepserver.protocol.work import FROM_WORKER, TO_WORKER, DropLane, Failed, Quarantine
from prepserver.worker.channel import MAX_QUEUED, CannotPass, Channel, ChannelClosed, pair, receive, send
from tests.support.leaks import descriptors, descriptors_left

Pair = tuple[Channel, socket.socket]


@pytest.fixture
def line() -> Iterator[Pair]:
    ours, theirs = pair()
    channel = Channel(ours, FROM_WORKER)
    yield channel, theirs
    channel.close()
    theirs.close()


def test_a_message_arrives_with_its_descriptor(line: Pair) -> None:
    """No child inherits it."""
    channel, theirs = line
    fd = os.memfd_create("passed")
    os.write(fd, b"content")
    channel.send(DropLane(3), [fd])
    os.close(fd)
    message, (got,) = receive(theirs, TO_WORKER)
    assert message == DropLane(3)
    assert os.pread(got, 10, 0) == b"content"
    assert fcntl.fcntl(got, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(got)


def test_what_a_busy_peer_leaves_unread_waits_with_descriptors(line: Pair) -> None:
    """Messages keep their order."""
    channel, theirs = line
    big = list(range(4096))
    fd = os.memfd_create("passed")
    before = descriptors()
    sent = 0
    while not channel.blocked:
        channel.send(Quarantine(sent, big), [fd])
        sent += 1
    for _ in range(3):
        channel.send(Quarantine(sent, big), [fd])
        sent += 1
    os.close(fd)
    for i in range(sent):
        message, (got,) = receive(theirs, TO_WORKER)
        os.close(got)
        assert message.stream == i
        channel.flush()
    assert not channel.blocked
    assert descriptors() == before - 1


def test_a_peer_that_never_reads_is_given_up(line: Pair) -> None:
    channel, _ = line
    fd = os.memfd_create("passed")
    before = descriptors()
    for _ in range(3):
        while not channel.blocked:
            channel.send(DropLane(0))
        channel.send(DropLane(0), [fd])

    def insist() -> None:
        for _ in range(MAX_QUEUED):
            channel.send(DropLane(0))

    with pytest.raises(ChannelClosed, match="does not read"):
        insist()
    channel.close()
    assert descriptors() == before - 1
    os.close(fd)


def test_a_dead_peers_last_messages_are_read_before_its_end(line: Pair) -> None:
    channel, theirs = line
    channel.send(DropLane(0))  # unread when the peer dies, which the kernel reports first
    send(theirs, Failed(1, "a"))
    send(theirs, Failed(2, "b"))
    theirs.close()
    arrived = channel.receive()
    assert [next(arrived)[0].task, next(arrived)[0].task] == [1, 2]
    with pytest.raises(ChannelClosed):
        next(arrived)


def test_asking_for_one_message_leaves_the_others_for_later(line: Pair) -> None:
    channel, theirs = line
    for task in (1, 2, 3):
        send(theirs, Failed(task, ""))
    theirs.close()
    assert [message.task for message, _ in channel.receive(1)] == [1]
    with pytest.raises(ChannelClosed):
        assert [message.task for message, _ in channel.receive()] == [2, 3]
    with pytest.raises(ChannelClosed):
        list(channel.receive(1))


def test_nothing_there_is_no_end(line: Pair) -> None:
    channel, _ = line
    assert list(channel.receive()) == []


def test_sending_to_a_dead_peer_says_so(line: Pair) -> None:
    channel, theirs = line
    theirs.close()
    with pytest.raises(ChannelClosed):
        channel.send(DropLane(0))


@pytest.mark.parametrize("data", [b"\xc1", bytes(MAX_MESSAGE_BYTES + 100), b"\x81\xa1t\xa8DropLane"])
def test_garbage_is_refused_and_its_descriptors_are_closed(line: Pair, data: bytes) -> None:
    channel, theirs = line
    before = descriptors()
    socket.send_fds(theirs, [data], [0, 1])
    with pytest.raises(ProtocolError):
        list(channel.receive())
    assert descriptors() == before


def test_a_message_that_cannot_wait_leaves_nothing_behind(line: Pair) -> None:
    """Its descriptors are copied, and this process can have no more; the peer is still there."""
    channel, theirs = line
    while not channel.blocked:
        channel.send(DropLane(0))
    with descriptors_left(1):
        before = descriptors()
        with pytest.raises(CannotPass, match="Too many open files"):
            channel.send(DropLane(1), [0, 0])
        assert descriptors() == before
    while channel.blocked:
        receive(theirs, TO_WORKER)
        channel.flush()
    channel.send(DropLane(1), [0])


FLOOD = """
import resource, sys
from prepserver.protocol.work import DropLane, FROM_WORKER
from prepserver.worker.channel import Channel, ChannelClosed, pair
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
ours, theirs = pair()
channel = Channel(ours, FROM_WORKER)
try:
    for _ in range(200):
        channel.send(DropLane(0), [0])
except ChannelClosed as e:
    print(e)
"""


def test_too_many_descriptors_on_their_way_are_an_end() -> None:
    """It counts those that all processes of this user have sent and nobody has taken; root may send any number."""
    plain = [] if os.getuid() else ["setpriv", "--bounding-set=-sys_resource,-sys_admin"]
    if plain and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, as root")
    ended = subprocess.run([*plain, sys.executable, "-c", FLOOD], capture_output=True, text=True, check=True)
    assert "too many descriptors are on their way to clients that do not take them" in ended.stdout
