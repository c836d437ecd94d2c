"""The demo's training processes: started together, read without waiting, always ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from prepserver.demo.failure import DemoFailure
from prepserver.demo.server import end_process, environment, tail


class Report(NamedTuple):
    """What a job said last: at which time (monotonic, seconds), images and whole epochs so far, its loss."""

    at_s: float
    images: int
    epochs: int
    loss: float
    first_batch_s: float


@dataclass(slots=True)
class Progress:
    """A job as far as it is known.

    Attributes:
        device: Where it trains; empty until it is ready.
        reports: All of them, oldest first.
    """

    device: str
    reports: list[Report]

    def images_between(self, start_s: float, stop_s: float) -> float:
        """Images that it took in between, by linear interpolation."""
        return self._images_at(stop_s) - self._images_at(start_s)

    def _images_at(self, moment_s: float) -> float:
        before = [r for r in self.reports if r.at_s <= moment_s]
        after = [r for r in self.reports if r.at_s > moment_s]
        if not before:
            return 0.0
        if not after:
            return before[-1].images
        a, b = before[-1], after[0]
        return a.images + (b.images - a.images) * (moment_s - a.at_s) / (b.at_s - a.at_s)


class TrainingJob:
    """One process of `prepserver.demo.train`.

    Args:
        name: For messages.
        config: For its stdin.
        log_path: For its stderr.

    Attributes:
        pid: Its process.
        progress: What it has told.
    """

    def __init__(self, name: str, config: Mapping[str, Any], log_path: Path) -> None:
        self.name = name
        self._log_path = log_path
        with log_path.open("wb") as log:
            # A session of its own: Ctrl-C is for the demo, which then ends its jobs.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "prepserver.demo.train"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, env=environment(), start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._unread = b""
        self.pid = self._process.pid
        self.progress = Progress("", [])
        self._write(json.dumps(dict(config)))

    def fileno(self) -> int:
        """Readable when it has said something."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> None:
        """Takes what it has said.

        Raises:
            DemoFailure: It has ended.
        """
        try:
            data = os.read(self.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            raise DemoFailure(f"training {self.name} ended early: {tail(self._log_path)}")
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            match said.pop("event"):
                case "ready":
                    self.progress.device = said["device"]
                case "failed":
                    raise DemoFailure(f"training {self.name} failed: {said['why']}")
                case _:
                    self.progress.reports.append(Report(**said))

    def go(self) -> None:
        """Lets it begin."""
        self._write("go")

    def ask_to_end(self) -> None:
        """It ends after its present batch."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self, patience_s: float) -> None:
        """Waits for its end, and makes it end where that takes too long."""
        self.ask_to_end()
        # What it still says must not keep it waiting for a reader.
        assert self._process.stdout is not None
        self._process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
            return
        end_process(self._process)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DemoFailure(f"training {self.name} ended early: {tail(self._log_path)}") from None


@contextlib.contextmanager
def training_jobs(configs: list[dict[str, Any]], scratch: Path) -> Iterator[list[TrainingJob]]:
    """A job for each configuration; none is left behind."""
    jobs: list[TrainingJob] = []
    try:
        for number, config in enumerate(configs, 1):
            jobs.append(TrainingJob(f"job {number}", config, scratch / f"job-{config['kind']}-{number}.log"))
        yield jobs
    finally:
        for job in jobs:
            job.ask_to_end()
        for job in jobs:
            job.end(patience_s=5.0)
