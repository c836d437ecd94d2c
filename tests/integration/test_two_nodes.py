"""A run on two nodes, each with a daemon and a network of its own, that torchrun joins."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.node import BATCH_SIZE, SAMPLES, STEPS
from tests.support.server import Server, environment
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.once, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parents[1] / "support" / "node.py"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def networks() -> Iterator[list[str]]:
    """Two network namespaces with one wire between them; 10.77.0.1 and 10.77.0.2 are nowhere else."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("two networks need root and iproute2")
    mark = uuid.uuid4().hex[:6]
    names = [f"pst-{mark}-{node}" for node in (1, 2)]
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"two networks cannot be made here: {error.stderr.strip()}")
            stack.callback(ip, "netns", "del", name)
        ip("link", "add", "wire", "netns", names[0], "type", "veth", "peer", "name", "wire", "netns", names[1])
        for node, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.77.0.{node}/24", "dev", "wire")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "wire", "up")
        yield names


def launch(networks: list[str], servers: list[Server], per_node: int, *arguments: str) -> None:
    """Runs torchrun on both nodes to the end."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(per_node)]
    torchrun += ["--master-addr", "10.77.0.1", "--master-port", "29577"]
    nodes = []
    for rank, (network, server) in enumerate(zip(networks, servers, strict=True)):
        command = ["ip", "netns", "exec", network, *torchrun, "--node-rank", str(rank), str(SCRIPT), *arguments]
        place = {"PREPSERVER_RUNTIME_DIR": str(server.runtime_dir), "GLOO_SOCKET_IFNAME": "wire"}
        env = environment(OMP_NUM_THREADS="1", **place)
        nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env))
    try:
        said = [node.communicate(timeout=3 * PATIENCE_S)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said


@pytest.mark.parametrize("framework", ["torch", "accelerate", "lightning"])
def test_two_nodes_share_an_epoch_and_four_ranks_finish_it(
    networks: list[str], new_server: Callable[..., Server], tmp_path: Path, framework: str
) -> None:
    """Two ranks stop in mid-epoch, and twice as many go on: each sample is read once."""
    pytest.importorskip(framework)
    servers = [new_server(workers=1) for _ in networks]
    launch(networks, servers, 1, str(tmp_path), framework)
    launch(networks, servers, 2, str(tmp_path), framework)
    first, second = ([*map(int, (tmp_path / f"read-{part}").read_text().split())] for part in ("first", "second"))
    assert len(first) == 2 * STEPS * BATCH_SIZE
    assert sorted(first + second) == [*range(SAMPLES)]
