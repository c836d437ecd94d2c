"""The client's end of the lease, with a real socket on the other side."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepclient.errors import ServerGone
from prepclient.transport import Lease
from prepserver import __version__
from prepserver.protocol.layout import sample_layout
from prepserver.protocol.messages import PROTOCOL, Attach, Moved, Welcome
from tests.support.one_peer import leased

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


def test_a_move_is_waited_for_whatever_the_number_of_its_descriptor(tmp_path: Path, many_descriptors: None) -> None:
    ring = os.memfd_create("ring")
    lease, peer = leased(tmp_path, WELCOME, ring, lambda: Lease(tmp_path, ATTACH, 60.0, lambda _samples: None))
    moved = Moved(64, (0, 0), LAYOUT)
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
