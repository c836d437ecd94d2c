"""One phase of the demo: all jobs start together, warm up, and are measured for a bounded time."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from prepserver.demo.processes import DemoFailure, DemoServer, TrainingJob, training_jobs, tree_cpu_s

IMPORT_S = 60.0
FIRST_BATCH_S = 60.0
WARM_S = 1.0
MEASURED_S = 8.0

_LOOK_S = 0.25

Look = Callable[[list[TrainingJob], float, float | None], None]
"""Shows the jobs, the age of the phase in seconds, and the sharing factor so far."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Results of one job: images/s, seconds to its first batch, last loss."""

    images_per_s: float
    first_batch_s: float
    loss: float


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """The result of a phase."""

    jobs: list[JobFigures]
    device: str  # where they trained
    window_s: float  # duration of the measurement
    cpu_s_per_image: float  # CPU time of jobs, workers and daemon for each image that reached a training loop
    sharing_factor: float  # images delivered per image made: counted by the daemon, 1 without one


def run_phase(configs: list[dict[str, Any]], scratch: Path, server: DemoServer | None, look: Look) -> PhaseFigures:
    """Runs and measures a job (see `prepserver.demo.train`) for each config; raises `DemoFailure` if one ends."""
    with training_jobs(configs, scratch) as jobs:
        phase = _Phase(jobs, server, look)
        phase.wait(lambda: all(j.device for j in jobs), IMPORT_S, "import torch")
        for job in jobs:
            job.tell("go")
        phase.wait(lambda: all(j.reports for j in jobs), FIRST_BATCH_S, "get a first batch")
        phase.pause(WARM_S)
        start = phase.now()
        phase.pause(MEASURED_S)
        stop = phase.now()
        phase.pause(_LOOK_S)  # for the reports about the end of the measurement
    window_s, cpu_s, made, delivered = (b - a for a, b in zip(start, stop, strict=True))
    images = [j.images_between(start.at_s, stop.at_s) for j in jobs]
    if not sum(images):
        raise DemoFailure(f"no job got a batch within {window_s:.0f} s: this machine is too slow or too busy")
    figures = [
        JobFigures(n / window_s, j.reports[-1].first_batch_s, j.reports[-1].loss)
        for n, j in zip(images, jobs, strict=True)
    ]
    return PhaseFigures(figures, jobs[0].device, window_s, cpu_s / sum(images), delivered / made if made else 1.0)


class _Now(NamedTuple):
    """Totals at one moment: monotonic time, CPU seconds of all processes, rows made and delivered by the daemon."""

    at_s: float
    cpu_s: float
    made: int
    delivered: int


@dataclass(slots=True, eq=False)
class _Phase:
    jobs: list[TrainingJob]
    server: DemoServer | None
    look: Look
    began_s: float = field(default_factory=time.monotonic)
    looked_s: float = 0.0

    def wait(self, until: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Reads the jobs' reports until `until()`; raises `DemoFailure` if the time is up, or a job ended."""
        deadline_s = time.monotonic() + timeout_s
        while not until():
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise DemoFailure(f"the jobs did not {what} within {timeout_s:.0f} s")
            if now_s - self.looked_s >= _LOOK_S:
                self.looked_s = now_s
                made, delivered = self._rows()
                self.look(self.jobs, now_s - self.began_s, delivered / made if made else None)
            for job in select.select(self.jobs, [], [], min(_LOOK_S, deadline_s - now_s) / 2)[0]:
                job.read()

    def pause(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= end_s, seconds + 1.0, "continue")

    def now(self) -> _Now:
        pids = [j.process.pid for j in self.jobs] + ([self.server.pid] if self.server else [])
        return _Now(time.monotonic(), tree_cpu_s(pids), *self._rows())

    def _rows(self) -> tuple[int, int]:
        return self.server.rows() if self.server else (0, 0)
