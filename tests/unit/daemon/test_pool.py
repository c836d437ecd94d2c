"""Decisions of the pool of workers."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prepserver.config import Settings
from prepserver.daemon.poll import Poll
from prepserver.daemon.pool import PluginsChanged, WorkerPool
from prepserver.daemon.seat import died_young, strikes_of
from prepserver.protocol import work
from prepserver.schedule.records import Suspect
from prepserver.schedule.strikes import CRASH_STRIKES, KILL_STRIKES
from prepserver.worker.channel import CannotPass


def test_only_workers_that_cannot_work_are_waited_for() -> None:
    """A lane whose ops kill every worker must not keep workers from other jobs."""
    assert died_young(1.0, 0, None)
    assert died_young(1.0, 0, Suspect(5))
    assert not died_young(1.0, 1, None)
    assert not died_young(100.0, 0, None)
    assert not died_young(1.0, 0, Suspect(5, lane=2))
    assert not died_young(1.0, 0, Suspect(None, lane=2))


def test_a_worker_that_exits_has_crashed_and_was_not_killed() -> None:
    assert [strikes_of(status) for status in (0, 3, 75, -signal.SIGSEGV)] == [CRASH_STRIKES] * 4
    assert [strikes_of(status) for status in (None, -signal.SIGKILL, -signal.SIGTERM)] == [KILL_STRIKES] * 3


def test_another_zygote_that_lacks_a_package_ends_the_daemon() -> None:
    """It stays up, so that without this error there would be no worker for ever."""
    nobody: Any = None
    pool = WorkerPool(Poll(), nobody, nobody, Settings(), 1, Path("/cache"))
    pool._zygote.process.about = work.Ready(broken="sources.roots = ['s3://bucket']: no package obstore")
    with pytest.raises(PluginsChanged, match="no package obstore"):
        pool._engine_ready(pool._zygote)


def test_workers_that_cannot_be_started_wait_longer_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """A lack of memory, for example, may last: each try is logged, and there are few."""
    nobody: Any = None
    pool = WorkerPool(Poll(), nobody, nobody, Settings(), 1, Path("/cache"))
    (seat,) = pool.seats
    for _ in range(12):
        pool._fill(seat)  # there is no zygote
    said = [each.getMessage() for each in caplog.records]
    assert all(text.startswith("cannot start worker 0: the zygote is not running. ") for text in said)
    assert [float(text.split()[-2]) for text in said] == [
        0.1,
        0.2,
        0.4,
        0.8,
        1.6,
        3.2,
        6.4,
        12.8,
        25.6,
        30.0,
        30.0,
        30.0,
    ]


def test_remote_workers_do_not_count_as_this_machines() -> None:
    """A successor waits for its own actors, because those of the old daemon may have all of Ray's cores."""
    nobody: Any = None
    pool = WorkerPool(Poll(), nobody, nobody, Settings(engine="ray", remote_workers=2), 1, Path("/cache"))
    there: Any = SimpleNamespace(host="elsewhere")
    pool._up = {0: there, 1: there}
    assert (pool.up, pool.local_up, pool.size) == (2, 0, 1)


@pytest.mark.parametrize("how", ["sent", "queued"])
def test_a_worker_that_cannot_be_told_is_replaced_without_blame(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It lives, and would never learn of the lane; nothing that it works on is to blame."""
    nobody: Any = None
    killed: list[str] = []

    def refuse(*_: Any) -> None:
        raise CannotPass("too many descriptors")

    child: Any = SimpleNamespace(number=0, blocked=True, flush=refuse, send=refuse, kill=lambda: killed.append(how))
    pool = WorkerPool(Poll(), nobody, nobody, Settings(), 1, Path("/cache"))
    (seat,) = pool.seats
    seat.child, pool._up = child, {0: child}
    if how == "sent":
        pool.broadcast(work.DropLane(1))
    else:
        pool._read_worker(child)
    assert killed == [how]
    assert seat.blameless
    assert "killed worker 0, which must be told again: too many descriptors" in caplog.text
