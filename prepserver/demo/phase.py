"""One phase of the demo: all jobs start together, warm up, and are measured for a bounded time."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepserver.demo.failure import DemoFailure
from prepserver.demo.jobs import TrainingJob, training_jobs
from prepserver.demo.server import DemoServer
from prepserver.demo.usage import tree_cpu_s

IMPORT_S = 60.0
FIRST_BATCH_S = 60.0
WARM_S = 1.0
LEAST_S, MOST_S = 3.0, 15.0
"""A phase is measured until every job has done its epochs, but within these bounds: a demo has to end."""

_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What one job reached: rate in images/s, seconds to its first batch, last loss."""

    images_per_s: float
    first_batch_s: float
    loss: float


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """What a phase showed.

    Attributes:
        jobs: In order.
        device: Where they trained.
        window_s: Length of the measured time.
        cpu_s_per_image: Of the jobs, their workers and the daemon, for each image that reached a training loop.
        sharing_factor: Images delivered per image made: by the daemon's count, or 1 by construction.
    """

    jobs: list[JobFigures]
    device: str
    window_s: float
    cpu_s_per_image: float
    sharing_factor: float


@dataclass(frozen=True, slots=True)
class View:
    """For the display, now and then: the jobs, the phase's age in seconds, the sharing factor so far."""

    jobs: list[TrainingJob]
    age_s: float
    sharing_factor: float | None


def run_phase(
    configs: list[dict[str, Any]],
    scratch: Path,
    server: DemoServer | None,
    epochs: int,
    look: Callable[[View], None],
) -> PhaseFigures:
    """Runs a job for each of `configs` and measures.

    Args:
        configs: For `prepserver.demo.train`.
        scratch: For logs.
        server: The daemon, if the jobs use one.
        epochs: After how many of each job to end, if the time allows.
        look: Called several times a second.

    Raises:
        DemoFailure: A job ends, or does not begin.
    """
    with training_jobs(configs, scratch) as jobs:
        phase = _Phase(jobs, server, look)
        phase.wait(lambda: all(j.progress.device for j in jobs), IMPORT_S, "import torch")
        for job in jobs:
            job.go()
        phase.wait(lambda: all(j.progress.reports for j in jobs), FIRST_BATCH_S, "get a first batch")
        phase.pause(WARM_S)
        start_s, cpu_s, rows = time.monotonic(), phase.cpu_s(), phase.rows()

        def enough() -> bool:
            age_s = time.monotonic() - start_s
            done = all(j.progress.reports[-1].epochs >= epochs for j in jobs)
            return age_s >= MOST_S or (age_s >= LEAST_S and done)

        phase.wait(enough, MOST_S + 1.0, "go on")
        stop_s = time.monotonic()
        cpu_s, now_rows = phase.cpu_s() - cpu_s, phase.rows()
        made, delivered = now_rows[0] - rows[0], now_rows[1] - rows[1]
        # The reports that say how far the jobs had got by then are still to come.
        phase.pause(_LOOK_S)
        images = [j.progress.images_between(start_s, stop_s) for j in jobs]
        if not sum(images):
            raise DemoFailure(f"no job got a batch in {stop_s - start_s:.0f} s; see `prepserver demo --help`")
        last = [j.progress.reports[-1] for j in jobs]
        return PhaseFigures(
            [JobFigures(n / (stop_s - start_s), r.first_batch_s, r.loss) for n, r in zip(images, last, strict=True)],
            jobs[0].progress.device,
            stop_s - start_s,
            cpu_s / sum(images),
            delivered / made if made else 1.0,
        )


class _Phase:
    def __init__(self, jobs: list[TrainingJob], server: DemoServer | None, look: Callable[[View], None]) -> None:
        self._jobs = jobs
        self._server = server
        self._look = look
        self._began_s = time.monotonic()
        self._looked_s = 0.0

    def wait(self, until: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Reads what the jobs say until `until()`.

        Raises:
            DemoFailure: Not within `timeout_s`, or a job ended.
        """
        deadline_s = time.monotonic() + timeout_s
        while not until():
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise DemoFailure(f"the jobs did not {what} within {timeout_s:.0f} s")
            if now_s - self._looked_s >= _LOOK_S:
                self._looked_s = now_s
                self._look(View(self._jobs, now_s - self._began_s, self._factor()))
            for job in select.select(self._jobs, [], [], min(_LOOK_S, deadline_s - now_s) / 2)[0]:
                job.read()

    def pause(self, seconds: float) -> None:
        """Lets the jobs run for a while."""
        end_s = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= end_s, seconds + 1.0, "go on")

    def cpu_s(self) -> float:
        """Of all processes of the phase so far."""
        return tree_cpu_s([j.pid for j in self._jobs] + ([self._server.pid] if self._server else []))

    def rows(self) -> tuple[int, int]:
        """Rows (made, delivered) by the daemon so far."""
        return self._server.rows() if self._server else (0, 0)

    def _factor(self) -> float | None:
        made, delivered = self.rows()
        return delivered / made if made else None
