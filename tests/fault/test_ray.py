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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import PrepClient
from prepserver.pipeline.sources import ImageFolder
from tests.support.clients import OPS, Rows, inline_rows, read
from tests.support.remote import bridge_of, ray_engine, remote_workers, rows_while
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

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
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(tree: ImageFolder) -> Rows:
    return inline_rows(tree, epochs=2, **SPEC)


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[Server]:
    with Server(workers=1, remote=2, arguments=["--address", cluster.address], env=LOOPBACK) as made:
        yield made


def _a_raylet(_server: Server, cluster: Cluster) -> None:
    os.kill(cluster.raylets.pop(), signal.SIGKILL)
    cluster.add()


def _all_actors(server: Server, _cluster: Cluster) -> None:
    for worker in remote_workers(server):
        os.kill(worker["pid"], signal.SIGKILL)


def _the_bridge(server: Server, _cluster: Cluster) -> None:
    os.kill(bridge_of(server), signal.SIGKILL)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("kill", [_a_raylet, _all_actors, _the_bridge])
def test_what_is_killed_in_mid_epoch_costs_no_row(
    server: Server, cluster: Cluster, tree: ImageFolder, expected: Rows, kill: Callable[[Server, Cluster], None]
) -> None:
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        assert rows_while(client, 90, lambda: kill(server, cluster)) == expected
    assert server.status()["quarantined"] == {}
    # Until Ray says why an actor is gone, status shows it.
    wait_until(lambda: sum(_lives(worker["pid"]) for worker in remote_workers(server)) == 2, 240, why=server.log)


def test_doctor_measures_the_network(cluster: Cluster) -> None:
    arguments = ("doctor", "--engine", "ray", "--address", cluster.address, "--seconds", "0.2", "--json")
    done = cli(*arguments, **LOOPBACK)
    found = {each["name"]: each for each in json.loads(done.stdout)["findings"]}
    (network,) = [each for name, each in found.items() if name == f"network from {os.uname().nodename}"]
    assert network["figures"]["bytes_per_s"] > 0, done


def test_without_the_head_local_workers_carry_on(
    server: Server, cluster: Cluster, tree: ImageFolder, expected: Rows
) -> None:
    """It comes last: the cluster is of no use afterwards."""

    def kill() -> None:
        for pid in (cluster.head, *cluster.raylets):
            os.kill(pid, signal.SIGKILL)

    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        assert rows_while(client, 90, kill) == expected
    wait_until(lambda: ray_engine(server)["state"] == "down", 240)
    assert ray_engine(server)["why"] != ""


def test_a_place_that_a_machine_cannot_read_is_named(tree: ImageFolder, expected: Rows) -> None:
    """The raylets see an empty folder where the tree's parent is: the local worker makes all rows."""
    hide = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(Path(tree.root).parent))
    if subprocess.run([*hide, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount")
    cluster = Cluster(1, *hide)
    try:
        with Server(workers=1, remote=1, arguments=["--address", cluster.address], env=LOOPBACK) as server:
            wait_until(lambda: remote_workers(server), 240, why=server.log)
            with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
                assert read(client) + read(client) == expected
                (worker,) = remote_workers(server)
                (found,) = worker["cannot_read"]
            assert f"{os.uname().nodename}, a remote worker's machine, cannot read" in found["why"]
    finally:
        cluster.close()
