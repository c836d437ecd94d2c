"""What was counted of a job in a stretch of time, and the numbers that follow from it.

The verdict on the job and the number of workers (`prepserver.telemetry.headcount`) are decided by these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

NOTICED = 0.05
"""Fraction of the loop's time from which on a wait is a finding."""

BUSY = 0.7  # workers that are busy for this fraction of their time are the limit
STARVED = 0.25  # fraction of the time for which a thread may be without a core
WAITS = 0.2  # a busy worker that needs a core for less of its time waits for something else
_OFTEN = 0.25
_MOST_TIMES = 4  # more than so many times the workers are never suggested in one step


@dataclass(frozen=True, slots=True)
class FullCache:
    """A cache that takes no more samples."""

    form: Literal["encoded", "decoded"]
    part: float  # fraction of the dataset's samples that it holds: the most that its hit rate can be
    all_bytes: int  # what it would take to hold all of them
    where: Literal["memory", "disk"]  # the setting of its budget


@dataclass(frozen=True, slots=True)
class Facts:
    """What was counted of a job in a stretch of time. Fractions are from 0 to 1."""

    span_s: float = 0.0  # length of the stretch
    batches: int = 0  # batches that the job has taken since it attached
    images_per_s: float = 0.0  # images that this rank takes
    waiting: float = 0.0  # fraction of the loop's time for which it waited for rows
    copying: float = 0.0  # fraction for which it waited while rows that were ready were copied
    # How often the job was seen waiting for what: ``workers``, ``job NAME``, ``ranks``, ``place``, ``stream ID``.
    waits_for: Mapping[str, float] = field(default_factory=dict)
    workers: int = 0
    workers_busy: float = 0.0  # fraction of their time for which they make rows
    workers_run: float = 0.0  # fraction of their time for which they run on a core
    workers_starved: float = 0.0  # fraction of their time for which they could run and have no core
    used: float = 0.0  # workers' worth of time that the job's stream takes
    # Seconds of a worker for one row of the job's stream by stage: ``read``, ``decode``, ``op NAME``.
    stages: Mapping[str, float] = field(default_factory=dict)
    cores: float = 1.0  # cores that prepserver may use
    cores_idle: float = 0.0  # those of them that are idle, on average
    # Fraction of the time for which the training process's main thread could run and has no core.
    loop_starved: float = 0.0
    gpu_busy: float | None = None  # utilisation of the job's GPU; None if it is not known
    ring_rows: int = 0
    round_rows: int = 0  # rows of one batch for all ranks of the job
    full_cache: FullCache | None = None  # the cache of the job's dataset, if it is full
    pure_kernels: str = ""  # why the compiled kernels are off; empty if they are on
    inline: bool = False  # whether the training process makes the rows itself

    @property
    def busy_workers(self) -> float:
        """Workers' worth of time that all streams take together."""
        return self.workers * self.workers_busy

    @property
    def wanted_per_s(self) -> float:
        """Images per second that the loop could take if rows were always there."""
        return self.images_per_s / max(1.0 - self.waiting, 0.02)

    @property
    def spare_factor(self) -> float:
        """How many times as fast the stream's rows could be made if workers that are idle now made them."""
        idle = self.workers * max(0.0, 1.0 - self.workers_busy)
        return (self.used + idle) / self.used if self.used > 0 else 1.0

    @property
    def main_wait(self) -> str:
        """What the job waits for: workers, unless it was often seen waiting for something else.

        A slow job lets the others have some rows now and then, and they are seen waiting for the workers to make these.
        """
        others = {cause: times for cause, times in self.waits_for.items() if cause != "workers"}
        cause = max(others, key=lambda each: (others[each], each), default="workers")
        return cause if cause in others and others[cause] >= _OFTEN * sum(self.waits_for.values()) > 0 else "workers"

    @property
    def run_share(self) -> float:
        """Fraction of a busy worker's time for which it needs a core, as far as it gets one."""
        idle = max(0.0, 1.0 - self.workers_busy - self.workers_starved)
        with_core = max(1.0 - idle - self.workers_starved, self.workers_run)
        return min(1.0, self.workers_run / with_core) if with_core > 0 else 1.0

    @property
    def more_workers(self) -> int:
        """Workers that the job needs in addition, as far as idle cores can run them."""
        factor = 1.0 / max(1.0 - self.waiting, 0.02)
        needed = math.ceil(max(self.busy_workers, 1.0) * (factor - 1.0))
        # Workers that mostly wait, as for storage, need hardly any core.
        room = math.floor(self.cores_idle / self.run_share) if self.run_share > WAITS else needed
        return max(0, min(needed, room, _MOST_TIMES * max(1, self.workers)))
