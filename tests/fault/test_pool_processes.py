"""The daemon's pool with a real zygote: nothing is kept of a process that is gone."""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from prepserver.config import Settings
from prepserver.daemon import awake
from prepserver.daemon.poll import Poll
from prepserver.daemon.pool import WorkerPool
from prepserver.pipeline.sources import TextLines
from prepserver.protocol import work
from prepserver.schedule.events import WorkerLost, WorkerUp
from prepserver.worker.child import Child
from prepserver.worker.launch import START_TIMEOUT_S
from tests.support import leaks
from tests.support.tiny_images import photo_tree
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.fault


NOBODY: Any = None  # hears of workers, of which there are none here


class Waiting:
    """A job that waits for a listing."""

    is_gone = False

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def hear(self, word: work.Indexing | work.Indexed | work.IndexFailed) -> None:
        self.heard.append(word)


@pytest.mark.parametrize("dies", [True, False])
def test_an_indexer_that_answers_early_leaves_no_descriptor(dies: bool, tmp_path: Path) -> None:
    """It answers before the pool is told that it was started."""
    source = photo_tree(tmp_path / "photos", 3)
    poll = Poll()
    gc.collect()  # what earlier tests left may go at any time
    before = leaks.fds(os.getpid())["anon_inode:[pidfd]"]
    pool = WorkerPool(poll, NOBODY, NOBODY, Settings(nice=0), 0, tmp_path / "cache")
    pool.start(NOBODY)
    zygote = pool._zygote.process
    try:
        poll.forget(zygote.fileno())
        pool.listings.want(source.to_wire(), job := Waiting(), 0)
        assert select.select([zygote.fileno()], [], [], PATIENCE_S)[0]  # that it runs is said, and not read
        assert zygote.pid is not None
        os.kill(zygote.pid, signal.SIGSTOP)  # that it ends is not said
        deadline_s = time.monotonic() + PATIENCE_S
        while not any(isinstance(a, work.Indexed | work.IndexFailed) for a in job.heard):
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


_ABORTS = """
import os
from prepserver.source import lines

whole = lines.list_lines

def listed(path, *more):
    if path.endswith("bad.txt"):
        os.abort()
    return whole(path, *more)

lines.list_lines = listed
prepserver_ops = {"nothing": lambda image, rng: image}
"""


def test_a_file_on_which_indexers_die_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may call abort() on a file that it cannot read; other listings continue."""
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "aborts.py").write_text(_ABORTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "owner"))
    for name in ("a", "b", "bad", "c"):
        (tmp_path / f"{name}.txt").write_text("a line\n")
    poll = Poll()
    pool = WorkerPool(poll, NOBODY, NOBODY, Settings(nice=0, plugins=("aborts",)), 0, tmp_path / "cache")
    pool.start(NOBODY)
    try:
        jobs = {"*": Waiting(), "[abc]": Waiting()}
        for pattern, job in jobs.items():
            pool.listings.want(TextLines(f"{tmp_path}/{pattern}.txt").to_wire(), job, 0)
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(job.heard and not isinstance(job.heard[-1], work.Indexing) for job in jobs.values()):
            assert time.monotonic() < deadline_s
            poll.run_once(0.1)
    finally:
        pool.close(5.0)
        poll.close()
    assert jobs["[abc]"].heard[-1].samples == 3
    assert f"It was reading {tmp_path}/bad.txt: if that is damaged" in jobs["*"].heard[-1].reason


class Heard:
    """Instead of the driver: what has happened to workers."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.happened = self.events.append


def test_a_zygote_that_starts_no_worker_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its end is not read at once, as of one that waits in the kernel."""
    poll, heard = Poll(), Heard()
    pool = WorkerPool(poll, cast(Any, heard), tuple, Settings(nice=0), 0, tmp_path)
    pool.start(NOBODY)
    try:
        first = pool._zygote.process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        pool.grow()
        pool.tick(awake.now_s() + START_TIMEOUT_S - 1)
        for late_s in range(1, 4):
            pool.tick(awake.now_s() + START_TIMEOUT_S + late_s)
        _run_until(poll, pool, lambda: heard.events)
        assert isinstance(heard.events[0], WorkerUp)
        assert pool._zygote.process.pid != first
        assert caplog.text.count("killed the zygote: it started no process within 60 s") == 1
        assert caplog.text.count("the zygote ended: killed by SIGKILL") == 1
    finally:
        pool.close(5.0)
        poll.close()


def test_a_zygote_that_starts_no_indexer_is_replaced(tmp_path: Path) -> None:
    """No worker is asked for, so nothing else shows that it hangs."""
    poll = Poll()
    pool = WorkerPool(poll, NOBODY, NOBODY, Settings(nice=0), 0, tmp_path / "cache")
    pool.start(NOBODY)
    try:
        assert pool._zygote.process.pid is not None
        os.kill(pool._zygote.process.pid, signal.SIGSTOP)
        pool.listings.want(photo_tree(tmp_path / "photos", 3).to_wire(), job := Waiting(), 0)
        pool.tick(awake.now_s() + START_TIMEOUT_S + 1)
        _run_until(poll, pool, lambda: job.heard and isinstance(job.heard[-1], work.Indexed))
    finally:
        pool.close(5.0)
        poll.close()


def test_a_worker_that_outlives_its_zygote_may_still_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that waits in the kernel for its storage: its rows are free when it has ended."""
    poll, heard = Poll(), Heard()
    pool = WorkerPool(poll, cast(Any, heard), tuple, Settings(nice=0), 1, tmp_path)
    pool.start(NOBODY)
    try:
        _run_until(poll, pool, lambda: heard.events)
        (up,) = heard.events
        with monkeypatch.context() as patched:
            patched.setattr(Child, "ended_by", lambda child, deadline_s: False)
            pool._zygote.process.kill()
            _run_until(poll, pool, lambda: len(heard.events) > 2)
        assert heard.events[1] == WorkerLost(up.worker, stuck=True)
        _run_until(poll, pool, lambda: len(heard.events) > 3)
        assert WorkerLost(up.worker) in heard.events[2:]
    finally:
        pool.close(5.0)
        poll.close()


def _run_until(poll: Poll, pool: WorkerPool, is_over: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_over():
        assert time.monotonic() < deadline_s
        poll.run_once(0.1)
        pool.tick(awake.now_s())
