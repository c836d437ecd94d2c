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
from prepserver.pipeline.sources import TextLines
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
    """As a library may, which calls abort() for a file that it cannot read; other listings go on."""
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "aborts.py").write_text(_ABORTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "owner"))
    for name in ("a", "b", "bad", "c"):
        (tmp_path / f"{name}.txt").write_text("a line\n")
    poll = Poll()
    pool = WorkerPool(poll, Nobody(), 0, 60.0, 0, "warning", plugins=["aborts"])
    pool.start()
    try:
        (cache := tmp_path / "cache").mkdir()
        answers: dict[str, list[Any]] = {"*": [], "[abc]": []}
        for pattern, said in answers.items():
            wire = TextLines(f"{tmp_path}/{pattern}.txt").to_wire()
            pool.build_index(work.BuildIndex(wire, str(cache)), said.append)
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(said and not isinstance(said[-1], work.Indexing) for said in answers.values()):
            assert time.monotonic() < deadline_s
            poll.run_once(0.1)
    finally:
        pool.close(5.0)
        poll.close()
    assert answers["[abc]"][-1].samples == 3
    assert f"It was reading {tmp_path}/bad.txt: if that is damaged" in answers["*"][-1].reason
