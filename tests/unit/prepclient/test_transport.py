"""The client's end of the lease, with a real socket on the other side."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepclient.errors import ServerGone
from prepclient.transport import Lease
from prepserver import __version__
from prepserver.daemon.attach import Listener, Peer
from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.layout import sample_layout
from prepserver.protocol.messages import ATTACH_SOCKET, PROTOCOL, Attach, Moved, Welcome

LAYOUT = sample_layout(4, (2, 2, 3), "uint8").to_wire()
ATTACH = Attach(
    protocol=(PROTOCOL, PROTOCOL), version=__version__, job="job", source={}, shuffle="full", seed=0, pipeline=[],
    batch_size=1, drop_last=False, rank=0, world_size=1,
)  # fmt: skip
WELCOME = Welcome(
    protocol=PROTOCOL, version=__version__, token=b"token", job_id=1, samples=4, num_classes=0, source_digest="x",
    epoch_start=0, position=0, ahead=0, layout=LAYOUT,
)  # fmt: skip


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """The next descriptors are beyond what select can name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"at most {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < 1024:
        held.append(os.dup(held[0]))
    yield
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def leased(runtime_dir: Path) -> tuple[Lease, Peer]:
    """Both ends of a lease."""
    listener = Listener(runtime_dir / ATTACH_SOCKET, Door())
    peers: list[Peer] = []

    def answer() -> None:
        listener.sock.setblocking(True)
        peer = listener.accept()
        assert peer is not None
        peers.append(peer)
        peer.sock.setblocking(True)
        assert peer.receive() == ATTACH
        assert peer.send(WELCOME, os.memfd_create("ring"))

    daemon = threading.Thread(target=answer)
    daemon.start()
    try:
        lease = Lease(runtime_dir, ATTACH, 60.0, lambda _samples: None)
    finally:
        daemon.join()
        listener.close()
    return lease, peers[0]


def test_a_move_is_waited_for_whatever_the_number_of_its_descriptor(tmp_path: Path, many_descriptors: None) -> None:
    lease, peer = leased(tmp_path)
    moved = Moved(64, (0, 0), LAYOUT)
    ring = os.memfd_create("ring")
    assert peer.send(moved, ring)
    ((found, fd),) = lease.moves(1)
    assert found == moved
    assert os.path.sameopenfile(fd, ring)
    peer.close()
    with pytest.raises(ServerGone):
        lease.moves(2)
    for each in (fd, ring):
        os.close(each)
    lease.close()
