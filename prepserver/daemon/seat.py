"""One place in the pool, and what the end of the worker in it means. It starts and ends nothing."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from prepserver.daemon.engine import Engine, backoff_s
from prepserver.schedule.records import Suspect
from prepserver.schedule.strikes import CRASH_STRIKES, KILL_STRIKES
from prepserver.telemetry.page import NO_LANE, SEVERAL, WorkerStats
from prepserver.worker.child import Child

_HEALTHY_S = 60.0  # a worker that lives this long, fills a chunk, or dies in a lane's ops, resets the backoff
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


@dataclass(slots=True)
class Seat:
    """One of the pool's places, and the worker in it, which `engine` gives."""

    number: int
    engine: Engine
    child: Child | None = None
    since_s: float = 0.0  # when the worker was asked for
    failures: int = 0  # workers in a row that could not be started or died young
    due_s: float = 0.0  # when the next worker may be asked for
    killed_s: float | None = None  # when the worker was killed
    blameless: bool = False  # whether it was killed, or ended to be replaced, by no fault of its own
    restarts: int = 0
    retires: bool = False  # whether the seat goes with its worker

    def failed_to_start(self, now_s: float) -> float:
        """No worker could be started; returns how long the next one must wait."""
        self.failures += 1
        wait_s = backoff_s(self.failures)
        self.due_s = now_s + wait_s
        return wait_s

    def took(self, child: Child, now_s: float) -> None:
        """A worker was asked for."""
        self.child, self.since_s, self.killed_s, self.blameless = child, now_s, None, False

    def lost(self, now_s: float, tasks: int, suspect: Suspect | None) -> None:
        """The worker has ended after `tasks` tasks, at `suspect`; the next one may have to wait."""
        if not self.blameless:
            young = died_young(now_s - self.since_s, tasks, suspect)
            self.failures = self.failures + 1 if young else 0
        self.due_s = now_s + (0.0 if self.failures <= 1 else backoff_s(self.failures - 1))
        self.child = None
        self.restarts += 1


def suspect_of(stats: WorkerStats) -> Suspect | None:
    """What a worker works on, by its page; None if it is idle."""
    index = None if stats.index == SEVERAL else stats.index
    return Suspect(index, None if stats.lane == NO_LANE else stats.lane) if stats.busy else None


def strikes_of(status: int | None) -> int:
    """Strikes against the sample at which a worker ended with this status of an `Exited` message.

    A kill from outside gives a worker no exit status. If there is one, it came from code that ran for the sample.
    """
    crashed = status is not None and (status >= 0 or -status in _CRASHES)
    return CRASH_STRIKES if crashed else KILL_STRIKES


def died_young(lived_s: float, tasks: int, suspect: Suspect | None) -> bool:
    """Whether a worker died so early that it may be unable to work at all; its replacement should then wait.

    A death in a lane's ops does not count: a lane has few tries, and other lanes must not wait for them.
    """
    in_ops = suspect is not None and suspect.lane is not None
    return not (in_ops or lived_s > _HEALTHY_S or tasks > 0)


def in_words(suspect: Suspect) -> str:
    """What a worker works on, for the log."""
    what = "one of several samples" if suspect.index is None else f"sample {suspect.index}"
    return what + ("" if suspect.lane is None else f" (its row of lane {suspect.lane})")
