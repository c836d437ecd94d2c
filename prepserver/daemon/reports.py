"""Turns messages of workers into events, and logs bad samples."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from prepserver.daemon.driver import Driver
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.watch import Watch
from prepserver.protocol import work
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.events import ChunkFailed, ChunkMade, WorkerLost, WorkerUp
from prepserver.schedule.records import BadRow, Suspect, Took

log = logging.getLogger(__name__)

_BAD_SAID_MOST = 10_000


class Reports:
    """See the module; implements `PoolEvents`."""

    def __init__(self, driver: Driver, coordinator: Coordinator, quarantine: Quarantine, watch: Watch) -> None:
        self._driver = driver
        self._coordinator = coordinator
        self._quarantine = quarantine
        self._watch = watch
        self._bad_said: set[tuple[int, str]] = set()

    def setup_messages(self) -> Iterable[tuple[Any, Sequence[int]]]:
        """See `PoolEvents`."""
        return self._driver.setup()

    def worker_up(self, worker: int) -> None:
        """See `PoolEvents`."""
        self._driver.happened(WorkerUp(worker))

    def worker_lost(self, worker: int, suspect: Suspect | None, strikes: int, stuck: bool) -> None:
        """See `PoolEvents`."""
        self._driver.happened(WorkerLost(worker, suspect, strikes, stuck))

    def task_done(self, worker: int, message: work.Filled | work.Failed) -> None:
        """See `PoolEvents`."""
        if isinstance(message, work.Failed):
            self._driver.happened(ChunkFailed(worker, message.task, message.reason, message.lane, message.final))
            return
        bad = tuple(BadRow(position, index, reason, tuple(lanes)) for position, index, reason, lanes in message.bad)
        for row in bad:
            self._say_once(row)
            if (source := self._coordinator.source_of(message.task)) is not None:
                self._quarantine.name(source, row.index, row.reason)
        took = Took(message.read_ns + message.make_ns, message.read_ns + message.shared_ns, tuple(message.lanes_ns))
        task = self._coordinator.workers.tasks.get(message.task)
        self._driver.happened(ChunkMade(worker, message.task, bad, took))
        if task is not None:
            self._watch.filled(task, message)

    def _say_once(self, row: BadRow) -> None:
        """Logs a bad sample once: it comes again in every pass."""
        said = (row.index, row.reason)
        if said not in self._bad_said:
            if len(self._bad_said) < _BAD_SAID_MOST:
                self._bad_said.add(said)
            log.warning("bad sample %d: %s", row.index, row.reason)
