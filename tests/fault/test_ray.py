"""Remote workers with Ray itself: a cluster on this machine whose raylets are killed.

Ray is too large for the extra `dev`, so that CI skips this file; `tests/integration/test_remote_workers.py` covers the
daemon's side there. To run it: ``pip install 'prepserver[ray]'``, then ``pytest tests/fault/test_ray.py``. It takes two
minutes and 2 GB, and listens on 127.0.0.1 only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import PrepClient, SourceUnavailable
from prepserver.pipeline.sources import ImageFolder
from tests.support.clients import OPS, Rows, inline_rows, read, rows_of
from tests.support.remote import bridge_of, ray_engine, remote_workers
from tests.support.server import Server, environment
from tests.support.tiny_images import photo_tree
from tests.support.waiting import wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install 'prepserver[ray]'")
pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

COUNT = 600
SPEC: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 30}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # a driver then keeps the address 127.0.0.1 as it is
SCRIPT = Path(__file__).parents[1] / "support" / "ray_cluster.py"


class Cluster:
    """The script in a process of its own, because importing Ray brings warnings and threads."""

    def __init__(self, raylets: int, *before: str) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, str(SCRIPT), str(raylets)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=environment(**LOOPBACK),
        )  # fmt: skip
        found = self._line()
        self.address: str = found["address"]
        self.raylets: list[int] = found["raylets"]
        self.head: int = found["head"]

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith("{"):
            assert line, "the cluster has ended"
        return dict(json.loads(line))

    def add(self) -> None:
        """Adds a raylet."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.raylets.append(self._line()["raylet"])

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return photo_tree(tmp_path_factory.mktemp("tree"), COUNT)


@pytest.fixture(scope="module")
def expected(tree: ImageFolder) -> Rows:
    return inline_rows(tree, epochs=2, **SPEC)


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[Server]:
    made = Server(workers=1, remote=2, arguments=["--address", cluster.address], env=LOOPBACK)
    try:
        yield made.start()
    finally:
        made.stop()
        made.discard()


def test_actors_make_the_same_bytes(server: Server, tree: ImageFolder, expected: Rows) -> None:
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        assert read(client) + read(client) == expected
    assert all(worker["rows"] > 0 for worker in server.status()["workers"])  # the local one, too


def test_a_raylet_killed_in_mid_epoch_costs_no_row(
    server: Server, cluster: Cluster, tree: ImageFolder, expected: Rows
) -> None:
    rows: Rows = []
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        for _number in range(2):
            for batch in client:
                rows += rows_of(batch)
                if len(rows) == 90:
                    os.kill(cluster.raylets.pop(), signal.SIGKILL)
    assert rows == expected
    assert server.status()["quarantined"] == {}
    cluster.add()
    wait_until(lambda: len(remote_workers(server)) == 2, 240, why=server.log)


def test_an_actor_killed_at_its_work_costs_no_row(server: Server, tree: ImageFolder, expected: Rows) -> None:
    rows: Rows = []
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        for _number in range(2):
            for batch in client:
                rows += rows_of(batch)
                if len(rows) == 90:
                    for worker in remote_workers(server):
                        os.kill(worker["pid"], signal.SIGKILL)
    assert rows == expected
    assert server.status()["quarantined"] == {}
    wait_until(lambda: len(remote_workers(server)) == 2, 240, why=server.log)


def test_a_killed_bridge_connects_again(server: Server, tree: ImageFolder, expected: Rows) -> None:
    rows: Rows = []
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        rows += read(client, 3)
        os.kill(bridge_of(server), signal.SIGKILL)
        rows = read(client)
    assert len(rows) == COUNT
    wait_until(lambda: len(remote_workers(server)) == 2, 240, why=server.log)


def test_without_the_head_local_workers_carry_on(
    server: Server, cluster: Cluster, tree: ImageFolder, expected: Rows
) -> None:
    """It comes last: the cluster is of no use afterwards."""
    rows: Rows = []
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        for _ in range(2):
            for batch in client:
                rows += rows_of(batch)
                if len(rows) == 90:
                    for pid in (cluster.head, *cluster.raylets):
                        os.kill(pid, signal.SIGKILL)
    assert rows == expected
    wait_until(lambda: ray_engine(server)["state"] == "down", 240)
    assert ray_engine(server)["why"] != ""


def test_a_place_that_a_machine_cannot_read_is_named(tree: ImageFolder) -> None:
    """The raylets see an empty folder where the tree's parent is."""
    hide = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(Path(tree.root).parent))
    if subprocess.run([*hide, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount")
    cluster = Cluster(1, *hide)
    server = Server(workers=1, remote=1, arguments=["--address", cluster.address], env=LOOPBACK)
    try:
        server.start()
        with (
            PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client,
            pytest.raises(SourceUnavailable, match=f"{os.uname().nodename}, a remote worker's machine, cannot read"),
        ):
            read(client)
    finally:
        server.stop()
        server.discard()
        cluster.close()
