"""A daemon with remote workers, as tests look at it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepclient import PrepClient
from tests.support import leaks
from tests.support.clients import Rows, rows_of
from tests.support.server import Server, environment
from tests.support.waiting import wait_until

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


def rows_while(client: PrepClient, rows_before: int, happens: Callable[[], object]) -> Rows:
    """Two epochs of a client, in which something happens after so many rows."""
    rows: Rows = []
    for _ in range(2):
        for batch in client:
            rows += rows_of(batch)
            if len(rows) == rows_before:
                happens()
    return rows


def await_others(server: Server, before: list[dict[str, Any]]) -> None:
    """Waits until as many other remote workers are up in the place of these."""
    gone = {worker["pid"] for worker in before}

    def are_there() -> bool:
        now = remote_workers(server)
        return len(now) == len(before) and gone.isdisjoint(worker["pid"] for worker in now)

    wait_until(are_there, 240, why=server.log)  # Ray notices after a while that a machine is gone


def remote_workers(server: Server) -> list[dict[str, Any]]:
    """The remote workers that are up, as status shows them."""
    return [worker for worker in server.status()["workers"] if worker.get("host")]


def ray_engine(server: Server) -> dict[str, Any]:
    """What status says of the bridge."""
    return dict(server.status()["engines"][1])
