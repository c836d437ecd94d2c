"""A daemon with remote workers, as tests look at it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support import leaks
from tests.support.server import Server, environment

STAND_IN = Path(__file__).parent / "stand_in_ray"


def stand_in_environment() -> dict[str, str]:
    """For a daemon whose bridge finds the stand-in in the place of Ray."""
    return {"PYTHONPATH": os.pathsep.join((str(STAND_IN), environment()["PYTHONPATH"]))}


def bridge_of(server: Server) -> int:
    """Pid of the bridge."""
    name = b"prepserver.engine.bridge"
    (pid,) = [
        pid for pid in leaks.children(server.pid) if name in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip
    return pid


def remote_workers(server: Server) -> list[dict[str, Any]]:
    """The remote workers that are up, as status shows them."""
    return [worker for worker in server.status()["workers"] if worker.get("host")]


def ray_engine(server: Server) -> dict[str, Any]:
    """What status says of the bridge."""
    return dict(server.status()["engines"][1])
