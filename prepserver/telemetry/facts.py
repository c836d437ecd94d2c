"""What was counted of a job over a span of time, and the numbers that follow from it.

The verdict on the job and the number of workers (`prepserver.telemetry.headcount`) follow from these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from prepserver.telemetry.remedies import Remedies

NOTICED = 0.05  # a wait of this fraction of the loop's time or more is a finding

BUSY = 0.7  # workers that are busy for this fraction of their time are the limit
STARVED = 0.25  # a thread that has no core for this fraction of the time, while it could run, is a finding
SLACK = 0.5  # less than this fraction of the workers' time, or of a core's, leaves room
WAITS = 0.2  # a busy worker that needs a core for less of its time mostly waits for something else
DYING = 3  # so many workers' deaths are no coincidence; one sample is quarantined after two or three
_OFTEN = 0.25
_MOST_TIMES = 4  # at most this many times the present workers are suggested at once


@dataclass(frozen=True, slots=True)
class FullCache:
    """A cache that takes no more samples."""

    form: Literal["encoded", "decoded"]
    part: float  # fraction of the dataset's samples that it holds, and so its highest hit rate
    all_bytes: int  # size of the setting that would hold all of them, and the caches that share it
    where: Literal["memory", "disk"]  # name of the setting that limits it


@dataclass(frozen=True, slots=True)
class Facts:
    """What was counted of a job over a span of time. Fractions are from 0 to 1."""

    span_s: float = 0.0  # length of that span
    batches: int = 0  # batches that the job has taken since it attached
    images_per_s: float = 0.0  # images that this rank takes
    waiting: float = 0.0  # fraction of the loop's time for which it waited for rows
    copying: float = 0.0  # fraction of the loop's time for which it waited while ready rows were copied
    in_epochs: float = 1.0  # fraction of the span that is the loop's time; the rest is evaluation, saving and the like
    # How often the job was seen waiting, by cause: ``workers``, ``job NAME``, ``ranks``, ``start``, ``stream ID``.
    waits_for: Mapping[str, float] = field(default_factory=dict)
    workers: int = 0
    workers_died: int = 0  # workers that ended or were killed in that span, or in the last `rates.WINDOW_S` of it
    workers_busy: float = 0.0  # fraction of their time for which they make rows
    workers_run: float = 0.0  # fraction of their time for which they run on a core
    workers_starved: float = 0.0  # fraction of their time for which they are ready to run and get no core
    used: float = 0.0  # workers that the job's stream keeps busy
    # Seconds of a worker for one row of the job's stream by stage: ``read``, ``decode``, ``op NAME``.
    stages: Mapping[str, float] = field(default_factory=dict)
    cores: float = 1.0  # cores that prepserver may use
    cores_idle: float = 0.0  # how many of them are idle, on average
    # Fraction of the time for which the training process's main thread is ready to run and gets no core.
    loop_starved: float = 0.0
    gpu_busy: float | None = None  # utilisation of the job's GPU; None if it is not known
    ring_rows: int = 0
    round_rows: int = 0  # rows of one batch for all ranks of the job
    cache: str = ""  # the cache that the job asks for: ``encoded``, ``decoded``, a folder, or none
    remedies: Remedies = Remedies()  # noqa: RUF009 - it is immutable
    bad: float = 0.0  # fraction of its rows that hold a replacement, because their samples cannot be used
    reads_plugin: bool = False  # whether its samples come from a Dataset of the operator
    full_cache: FullCache | None = None  # the cache of the job's dataset, if it is full
    pure_kernels: str = ""  # why the compiled kernels are off; empty if they are on
    inline: bool = False  # whether the training process makes the rows itself

    @property
    def busy_workers(self) -> float:
        """Workers that all streams together keep busy."""
        return self.workers * self.workers_busy

    @property
    def wanted_per_s(self) -> float:
        """Images per second that the loop could take if rows were always there."""
        return self.images_per_s / max(1.0 - self.waiting, 0.02)

    @property
    def spare_factor(self) -> float:
        """The factor by which the stream's rows could be made faster if the idle workers made them, too."""
        idle = self.workers * max(0.0, 1.0 - self.workers_busy)
        return (self.used + idle) / self.used if self.used > 0 else 1.0

    @property
    def main_wait(self) -> str:
        """What the job waits for: workers, unless it was often seen waiting for something else.

        Jobs that wait for a slow job are at times seen waiting for the workers, when it has let them have some rows.
        """
        others = {cause: times for cause, times in self.waits_for.items() if cause != "workers"}
        cause = max(others, key=lambda each: (others[each], each), default="workers")
        return cause if cause in others and others[cause] >= _OFTEN * sum(self.waits_for.values()) > 0 else "workers"

    @property
    def run_share(self) -> float:
        """Fraction of a busy worker's time for which it needs a core, judged by the time when it can have one."""
        idle = max(0.0, 1.0 - self.workers_busy - self.workers_starved)
        with_core = max(1.0 - idle - self.workers_starved, self.workers_run)
        return min(1.0, self.workers_run / with_core) if with_core > 0 else 1.0

    @property
    def more_workers(self) -> int:
        """Additional workers that the job needs and idle cores can run."""
        factor = 1.0 / max(1.0 - self.waiting, 0.02)
        needed = math.ceil(max(self.busy_workers, 1.0) * (factor - 1.0))
        # Workers that mostly wait, for storage for example, hardly need a core.
        room = math.floor(self.cores_idle / self.run_share) if self.run_share > WAITS else needed
        return max(0, min(needed, room, _MOST_TIMES * max(1, self.workers)))
