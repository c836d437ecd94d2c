"""Turns the workers' reports of their tasks into events, and logs bad samples."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from prepserver.daemon.driver import Driver
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.watch import Watch
from prepserver.protocol import work
from prepserver.schedule.events import ChunkFailed, ChunkMade
from prepserver.schedule.records import BadRow, Took

log = logging.getLogger(__name__)

_BAD_LOGGED_MOST = 10_000


class Reports:
    """Receives the reports of all workers; `cache_dir` is the folder of the index files."""

    def __init__(self, driver: Driver, quarantine: Quarantine, watch: Watch, cache_dir: Path) -> None:
        self._driver = driver
        self._quarantine = quarantine
        self._watch = watch
        self._cache_dir = cache_dir
        self._bad_logged: set[tuple[int, str]] = set()

    def task_done(self, worker: int, message: work.Filled | work.Failed) -> None:
        """Handles a worker's report that it has finished a task."""
        if isinstance(message, work.Failed):
            index = Path(message.damaged)
            if index.parent == self._cache_dir and index.suffix == ".idx":  # not an index that belongs to the dataset
                with contextlib.suppress(OSError, ValueError):  # the disk is read-only, or no file can have that name
                    index.unlink()  # the next attach makes it again
            self._driver.happened(ChunkFailed(worker, message.task, message.reason, message.lane, message.elsewhere))
            return
        bad = tuple(BadRow(position, index, reason, tuple(lanes)) for position, index, reason, lanes in message.bad)
        for row in bad:
            self._log_once(row)
            if (source := self._driver.coordinator.source_of(message.task)) is not None:
                self._quarantine.name(source, row.index, row.reason)
        took = Took(message.read_ns + message.make_ns, message.read_ns + message.shared_ns, tuple(message.lanes_ns))
        task = self._driver.coordinator.workers.tasks.get(message.task)
        self._driver.happened(ChunkMade(worker, message.task, bad, took))
        if task is not None:
            self._watch.filled(task, message)

    def _log_once(self, row: BadRow) -> None:
        """Logs a bad sample, but not again in every pass; the jobs' own logs name each one that they were given."""
        sample = (row.index, row.reason)
        if sample in self._bad_logged or len(self._bad_logged) >= _BAD_LOGGED_MOST:
            return
        self._bad_logged.add(sample)
        log.warning("bad sample %d: %s", row.index, row.reason)
        if len(self._bad_logged) == _BAD_LOGGED_MOST:
            log.warning("%d bad samples were logged: others are only in the audit logs of their jobs", _BAD_LOGGED_MOST)
