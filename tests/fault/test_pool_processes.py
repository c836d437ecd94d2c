"""The daemon's pool with a real zygote: nothing is kept of a process that is gone."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from prepserver.daemon.poll import Poll
from prepserver.daemon.pool import WorkerPool
from prepserver.protocol import work
from prepserver.schedule.records import Suspect
from tests.support import leaks
from tests.support.tiny_images import photo_tree
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.fault


class Nobody:
    """Owns a pool and wants nothing of it."""

    def setup_messages(self) -> Iterable[tuple[Any, Sequence[int]]]:
        return ()

    def worker_up(self, worker: int) -> None: ...

    def task_soon(self, task: int) -> None: ...

    def worker_lost(self, worker: int, suspect: Suspect | None, strikes: int, stuck: bool) -> None: ...

    def task_done(self, worker: int, message: work.Filled | work.Failed) -> None: ...


@pytest.mark.parametrize("dies", [True, False])
def test_an_indexer_that_answers_early_leaves_no_descriptor(dies: bool, tmp_path: Path) -> None:
    """It answers before the pool is told that it was started."""
    source = photo_tree(tmp_path / "photos", 3)
    poll = Poll()
    before = leaks.fds(os.getpid())["anon_inode:[pidfd]"]
    pool = WorkerPool(poll, Nobody(), 0, 60.0, 0, "warning")
    pool.start()
    zygote = pool._zygote.process
    try:
        poll.forget(zygote.fileno())
        answers: list[Any] = []
        cache = tmp_path / "cache"
        cache.mkdir()
        pool.build_index(work.BuildIndex(source.to_wire(), str(cache)), answers.append)
        assert select.select([zygote.fileno()], [], [], PATIENCE_S)[0]  # that it runs is said, and not read
        assert zygote.pid is not None
        os.kill(zygote.pid, signal.SIGSTOP)  # that it ends is not said
        deadline_s = time.monotonic() + PATIENCE_S
        while not any(isinstance(a, work.Indexed | work.IndexFailed) for a in answers):
            assert time.monotonic() < deadline_s
            poll.run_once(0.1)
        if dies:
            os.kill(zygote.pid, signal.SIGKILL)
            assert select.select([zygote.fileno()], [], [], PATIENCE_S)[0]
        pool._read_engine(pool._zygote)
        assert leaks.fds(os.getpid())["anon_inode:[pidfd]"] == before
    finally:
        pool.close(5.0)
        poll.close()
