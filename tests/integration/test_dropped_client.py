"""A client that nobody refers to any more leaves at once, though nobody called `close`."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from prepclient import BadSampleError, PrepClient, SyntheticImages
from tests.support import leaks
from tests.support.clients import OPS
from tests.support.device_client import DeviceClient
from tests.support.server import Server
from tests.support.tiny_images import photo_tree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SOURCE = SyntheticImages(200, 32)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Memory is freed because nothing refers to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sockets() -> int:
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))


def assert_left(server: Server, dropped: weakref.ref[PrepClient], sockets_before: int) -> None:
    assert dropped() is None
    assert leaks.rings(os.getpid()) == {}  # neither mapped nor open
    wait_until(lambda: server.status()["jobs"] == [])
    wait_until(lambda: sockets() <= sockets_before)  # libzmq's thread closes its own, and those of earlier tests


@pytest.mark.parametrize("kind", [PrepClient, DeviceClient])
@pytest.mark.parametrize("batches", [0, 1, 3, 13])
def test_a_dropped_client_leaves(kind: type[PrepClient], batches: int, server: Server, no_collector: None) -> None:
    before = sockets()
    client = kind(SOURCE, OPS, batch_size=16, runtime_dir=server.runtime_dir)
    iterator = iter(client)
    for _ in range(batches):
        next(iterator)
    assert len(server.status()["jobs"]) == 1
    dropped = weakref.ref(client)
    del client, iterator
    assert_left(server, dropped, before)


def test_a_client_dropped_after_an_error_leaves(server: Server, no_collector: None, tmp_path: Any) -> None:
    before = sockets()
    tree = photo_tree(tmp_path / "photos", 4, broken=frozenset({1}))
    client = PrepClient(tree, OPS, batch_size=4, runtime_dir=server.runtime_dir)
    dropped = weakref.ref(client)
    with contextlib.suppress(BadSampleError):
        next(iter(client))
    del client
    assert_left(server, dropped, before)
