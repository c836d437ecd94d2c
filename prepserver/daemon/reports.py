"""Turns the workers' reports of their tasks into events, and logs bad samples."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from pathlib import Path

from prepserver.daemon.driver import Driver
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.watch import Watch
from prepserver.protocol import work
from prepserver.schedule.events import ChunkFailed, ChunkMade
from prepserver.schedule.records import BadRow, Took

log = logging.getLogger(__name__)

_NAMED_MOST = 20  # of the bad samples of a source
_SOURCES_MOST = 1000  # that are remembered


@dataclass(slots=True)
class _Bad:
    """What was logged of a source."""

    count: int = 0  # rows with a bad sample; one that is not `named` counts again in each pass
    named: set[tuple[int, str]] = field(default_factory=set)  # the first ones, with their reasons


class Reports:
    """Receives the reports of all workers; `cache_dir` is the folder of the index files."""

    def __init__(self, driver: Driver, quarantine: Quarantine, watch: Watch, cache_dir: Path) -> None:
        self._driver = driver
        self._quarantine = quarantine
        self._watch = watch
        self._cache_dir = cache_dir
        self._bad: dict[str, _Bad] = {}  # by source

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
        source = self._driver.coordinator.source_of(message.task)
        for row in bad:
            self._log(source or "", row)
            if source is not None:
                self._quarantine.name(source, row.index, row.reason)
        took = Took(message.read_ns + message.make_ns, message.read_ns + message.shared_ns, tuple(message.lanes_ns))
        task = self._driver.coordinator.workers.tasks.get(message.task)
        self._driver.happened(ChunkMade(worker, message.task, bad, took))
        if task is not None:
            self._watch.filled(task, message)

    def _log(self, source: str, row: BadRow) -> None:
        """Logs a bad sample, but not again in every pass, and not each of many: the jobs' own logs name them all."""
        if source not in self._bad and len(self._bad) >= _SOURCES_MOST:
            del self._bad[next(iter(self._bad))]
        bad = self._bad.setdefault(source, _Bad())
        if (sample := (row.index, row.reason)) in bad.named:
            return
        bad.count += 1
        if len(bad.named) < _NAMED_MOST:
            bad.named.add(sample)
            log.warning("bad sample %d: %s", row.index, row.reason)
            if bad.count == _NAMED_MOST:
                log.warning(
                    "of more rows with bad samples of this dataset, only the 100th, the 1000th and so on are named"
                )
        elif str(bad.count).strip("0") == "1":
            log.warning("bad sample %d, in the %dth such row of its dataset: %s", row.index, bad.count, row.reason)
