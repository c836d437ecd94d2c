"""A machine's processes may be stopped together and go on later (`docker pause`, Ctrl-Z): no deadline has passed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from prepclient import GaussianBlur, PrepClient, RandomResizedCrop, SyntheticImages
from prepserver.daemon.awake import PAUSE_S
from tests.support import leaks
from tests.support.clients import Rows, inline_rows, rows_of
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault

TIMEOUT_S = 4


def freeze(server: Server, seconds: float) -> None:
    """Stops the daemon and all its processes for so long."""
    pids = leaks.marked(server.mark)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(map(leaks.stopped, pids)))
    time.sleep(seconds)
    os.kill(server.pid, signal.SIGCONT)
    time.sleep(0.5)  # the daemon looks at its workers, which are still where they were
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def test_no_worker_is_blamed_for_the_time_of_a_freeze() -> None:
    source, ops = SyntheticImages(400, size=300), [RandomResizedCrop(224), GaussianBlur(9, (0.1, 3.0))]
    rows: Rows = []
    with Server(settings={"sample_timeout_s": TIMEOUT_S}) as server:
        with PrepClient(source, ops, fields="dict", batch_size=20, runtime_dir=server.runtime_dir) as client:
            for number, batch in enumerate(client):
                rows += rows_of(batch)
                if number == 2:  # the workers are in the midst of the epoch
                    freeze(server, max(TIMEOUT_S, PAUSE_S) + 2)
        assert [worker["restarts"] for worker in server.status()["workers"]] == [0, 0]
        assert "killed worker" not in server.log()
    assert rows == inline_rows(source, ops=ops, batch_size=20)
