"""Keeps the pool at the number of workers in the settings, or as `prepserver.telemetry.headcount` decides."""

from __future__ import annotations

import logging

from prepserver.config import auto_most_workers
from prepserver.daemon.driver import Driver
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.watch import Watch
from prepserver.schedule.events import WorkerRetires
from prepserver.telemetry.headcount import Headcount, next_headcount
from prepserver.telemetry.logs import counted

log = logging.getLogger(__name__)


class PoolSizer:
    """Adds and retires workers. `fixed` is the number in the settings; 0 lets it adapt."""

    def __init__(self, driver: Driver, pool: WorkerPool, watch: Watch, fixed: int) -> None:
        self._driver = driver
        self._pool = pool
        self._watch = watch
        self._now = Headcount(pool.size)
        self.fixed = fixed

    def mark(self, now_s: float) -> None:
        """Chooses the number, and adds or retires workers; call it about once a second."""
        was = self._now
        if self.fixed:
            self._now = Headcount(self.fixed, "the settings were read again")
        else:
            self._now = next_headcount(was, self._watch.facts_of_slowest(), auto_most_workers(), now_s)
        if self._now.workers != was.workers:
            log.info("%s instead of %d: %s", counted(self._now.workers, "worker"), was.workers, self._now.why)
        pool = self._pool
        for _ in range(pool.size, self._now.workers):
            pool.grow()
        for _ in range(self._now.workers, pool.size):
            # If the last worker is only starting, it retires a second later.
            if (worker := pool.retire()) is not None:
                self._driver.happened(WorkerRetires(worker))
