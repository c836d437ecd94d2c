"""Job processes as the benchmark's parent sees them: start all, let them go at once, collect what they saw."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server import environment

_END_S = 30.0


class Job:
    """One process of `job.py`."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("job.py"))], env=environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.pid = self._process.pid
        self.say(json.dumps(config))

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def hear(self, expected: str | None = None) -> str:
        """Its next line. Waits as long as it takes: a job that fails ends, and so ends the wait."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (expected is not None and line != expected):
            raise SystemExit(f"a job said {line!r} where {expected or 'its record'!r} was due; its error is above")
        return line

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Jobs:
    """All jobs of one run.

    Attributes:
        went_ns: When they were let go.
    """

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs
        self.went_ns = 0

    @property
    def pids(self) -> list[int]:
        return [job.pid for job in self._jobs]

    def go(self) -> None:
        """Lets all go at once; returns when each has its first batch."""
        for job in self._jobs:
            job.hear("ready")
        self.went_ns = time.monotonic_ns()
        for job in self._jobs:
            job.say("go")
        for job in self._jobs:
            job.hear("first")

    def stop(self) -> list[dict[str, Any]]:
        """Ends all; what each of them saw."""
        for job in self._jobs:
            job.say("stop")
        return [json.loads(job.hear()) for job in self._jobs]


@contextlib.contextmanager
def started(configs: list[dict[str, Any]]) -> Iterator[Jobs]:
    """A job for each configuration, ended at the end."""
    jobs: list[Job] = []
    try:
        jobs.extend(Job(config) for config in configs)
        yield Jobs(jobs)
    finally:
        for job in jobs:
            job.end()
