"""Remote workers and their bridge, with a stand-in for Ray that runs actors in the bridge's own threads.

`tests/fault/test_ray.py` does the same with Ray and its raylets, where that is installed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import PrepClient
from prepserver.pipeline.sources import ImageFolder
from tests.support.clients import OPS, Rows, inline_rows, read
from tests.support.forked import cli
from tests.support.remote import (
    await_others,
    bridge_of,
    ray_engine,
    remote_workers,
    rows_while,
    stand_in_environment,
)
from tests.support.server import Server
from tests.support.tiny_images import photo_tree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

COUNT = 300
BROKEN = frozenset({7, 150})
SPEC: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 30, "on_error": "skip"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return photo_tree(tmp_path_factory.mktemp("tree"), COUNT, BROKEN)


@pytest.fixture(scope="module")
def expected(tree: ImageFolder) -> Rows:
    return inline_rows(tree, epochs=2, **SPEC)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that stands for a cluster: without it there is none."""
    found = tmp_path_factory.mktemp("cluster") / "head"
    found.touch()
    return found


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Server]:
    with Server(
        workers=1, remote=2, settings={"sample_timeout_s": 5.0}, arguments=["--address", str(cluster)],
        env=stand_in_environment(),
    ) as server:  # fmt: skip
        yield server


def test_remote_workers_make_the_same_bytes(shared: Server, tree: ImageFolder, expected: Rows) -> None:
    with PrepClient(tree, OPS, fields="dict", runtime_dir=shared.runtime_dir, **SPEC) as client:
        assert read(client) + read(client) == expected
        assert client.stats()["bad_samples"] == 2 * len(BROKEN)
    found = remote_workers(shared)
    assert [worker["host"][:8] for worker in found] == ["machine-"] * 2
    assert all(worker["rows"] > 0 for worker in shared.status()["workers"])  # the local one, too
    assert ray_engine(shared) == {"name": "the bridge to Ray", "state": "up", "why": ""}
    shown = cli("status", "--runtime-dir", str(shared.runtime_dir)).stdout
    assert "remote workers" in shown
    assert found[0]["host"] in shown


def test_a_killed_bridge_costs_no_row(shared: Server, cluster: Path, tree: ImageFolder, expected: Rows) -> None:
    """The same if the cluster is gone for a while: local workers continue, and status says why."""

    def kill() -> None:
        cluster.unlink()
        os.kill(bridge_of(shared), signal.SIGKILL)

    with PrepClient(tree, OPS, fields="dict", runtime_dir=shared.runtime_dir, **SPEC) as client:
        assert rows_while(client, 60, kill) == expected
    wait_until(lambda: "cannot connect" in ray_engine(shared)["why"])
    engine = ray_engine(shared)
    assert engine["state"] == "down"
    assert f"cannot connect to Ray at {cluster}: ConnectionError: nothing listens at {cluster}" in engine["why"]
    assert "workers are down" in cli("status", "--runtime-dir", str(shared.runtime_dir)).stdout
    cluster.touch()
    wait_until(lambda: len(remote_workers(shared)) == 2, why=shared.log)
    assert shared.status()["quarantined"] == {}


def test_machines_that_cannot_read_a_dataset_end_no_job(
    shared: Server, cluster: Path, tree: ImageFolder, expected: Rows
) -> None:
    """As after a restart of the bridge, which knows nothing of what they could read before: local workers can."""
    blind = Path(f"{cluster}.blind")
    blind.touch()
    before = remote_workers(shared)
    os.kill(bridge_of(shared), signal.SIGKILL)
    await_others(shared, before)
    with PrepClient(tree, OPS, fields="dict", runtime_dir=shared.runtime_dir, **SPEC) as client:
        assert read(client) + read(client) == expected
        for worker in remote_workers(shared):
            (found,) = worker["cannot_read"]
            assert found["why"] == f"the dataset is not mounted (on {worker['host']})"
            assert found["why"] in cli("status", "--runtime-dir", str(shared.runtime_dir)).stdout
    blind.unlink()
    before = remote_workers(shared)
    os.kill(bridge_of(shared), signal.SIGKILL)
    await_others(shared, before)


def test_a_bridge_that_stands_still_is_ended(shared: Server, cluster: Path, tree: ImageFolder, expected: Rows) -> None:
    """There is little room ahead, so that its workers have tasks when it stops."""

    def stop() -> None:
        cluster.unlink()  # nobody needs another bridge
        os.kill(bridge_of(shared), signal.SIGSTOP)

    with PrepClient(tree, OPS, fields="dict", runtime_dir=shared.runtime_dir, prefetch=90, **SPEC) as client:
        assert rows_while(client, 60, stop) == expected
    assert "it did not end worker" in shared.log()
