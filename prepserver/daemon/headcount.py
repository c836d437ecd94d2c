"""Keeps the pool at the number of workers that the settings say, or that `prepserver.telemetry.headcount` decides."""

from __future__ import annotations

import logging

from prepserver.config import auto_most_workers
from prepserver.daemon.driver import Driver
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.watch import Watch
from prepserver.schedule.events import WorkerRetires
from prepserver.telemetry.headcount import Headcount, next_headcount

log = logging.getLogger(__name__)


class Keeper:
    """See the module.

    Args:
        pool: The workers.
        driver: Hears of workers that retire.
        watch: Knows how the jobs do.
        fixed: The number of the settings; 0 to adapt it.
    """

    def __init__(self, pool: WorkerPool, driver: Driver, watch: Watch, fixed: int) -> None:
        self._pool = pool
        self._driver = driver
        self._watch = watch
        self._now = Headcount(pool.size)
        self.fixed = fixed

    def mark(self, now_s: float) -> None:
        """Decides, and adds or retires workers; call it about once a second."""
        was = self._now
        if self.fixed:
            self._now = Headcount(self.fixed, "the settings were read again")
        else:
            self._now = next_headcount(was, self._watch.facts_of_slowest(), auto_most_workers(), now_s)
        if self._now.workers != was.workers:
            log.info("%d workers instead of %d: %s", self._now.workers, was.workers, self._now.why)
        for _ in range(self._pool.size, self._now.workers):
            self._pool.grow()
        for _ in range(self._now.workers, self._pool.size):
            # One that is just starting retires a second later.
            if (worker := self._pool.retire()) is not None:
                self._driver.happened(WorkerRetires(worker))
