"""Daemon and training job in two containers that share the folder of the sockets and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import ClientProcess, inline_rows
from tests.support.server import Server
from tests.support.tiny_images import photo_tree
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

CONTAINER = ["unshare", "--mount", "--ipc", "--pid", "--net", "--uts", "--fork", "--kill-child", "--mount-proc"]
"""A mount, process, network and IPC namespace, as a container's; a user namespace only without root."""
if os.getuid() != 0:
    CONTAINER.append("--map-root-user")

ENTER = """
set -e
sockets=$1 target=$2 daemon=$3 daemons_home=$4 data=$5
shift 5
mount --bind "$sockets" "$target"
for hidden in "$daemons_home" "$data" /dev/shm; do mount -t tmpfs -o size=64k none "$hidden"; done
[ -z "$(ls -A "$daemons_home" "$data" | grep -v :)" ] && [ ! -e /proc/$daemon ] # nothing of the daemon is to be seen
exec "$@"
"""


def test_a_job_in_another_container_shares_only_the_sockets(
    server: Server, client_process: Callable[..., ClientProcess], tmp_path: Path
) -> None:
    """No path, process, IPC object, network or /dev/shm in common: batches come all the same."""
    tried = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if tried.returncode:
        pytest.skip(f"namespaces cannot be made here: {tried.stderr.strip()}")
    data, target = tmp_path / "data", tmp_path / "run"
    target.mkdir()
    source = photo_tree(data, 40)
    places = map(str, (server.runtime_dir, target, server.pid, server.home, data))
    reading: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}
    job = client_process(target, source, within=[*CONTAINER, "sh", "-c", ENTER, "sh", *places], **reading)
    assert job.read() == inline_rows(source, **reading)
