"""When a daemon has written what it logs of its jobs."""

from __future__ import annotations

import os

from prepclient import CenterCrop, PrepClient, SyntheticImages
from prepserver.audit import logfile
from tests.support.server import Server
from tests.support.waiting import wait_until

LAST = "the last"
"""Name of a job that says nothing else."""


def await_logged(server: Server) -> None:
    """Waits until all jobs have ended and their logs say so.

    A thread writes all logs, entry by entry: when the end of another job is in its log, everything before is in theirs.
    """
    wait_until(lambda: server.status()["jobs"] == [], why=server.log)
    path = logfile.path_of(server.home / "cache" / logfile.FOLDER, LAST, os.getuid())

    def ends() -> int:
        return path.read_bytes().count(b'"k":"left"') if path.exists() else 0

    before = ends()
    source, ops = SyntheticImages(1, 8), [CenterCrop(8)]
    with PrepClient(source, ops, batch_size=1, job=LAST, runtime_dir=server.runtime_dir) as client:
        len(client)
    wait_until(lambda: ends() > before, why=server.log)
