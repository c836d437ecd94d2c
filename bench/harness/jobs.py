"""Processes of contenders as the benchmark sees them: start all jobs, let them go at once, collect what they saw."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from bench.harness.server import environment

_END_S, _LINGER_S = 10.0, 3.0


class Job:
    """One process of `bench.harness.job`.

    ``config["python"]`` is its interpreter, if it is not this one; ``config["log"]`` is a file for its stderr.
    """

    def __init__(self, config: dict[str, Any], role: str = "job") -> None:
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(open(config["log"], "a")) if "log" in config else None
            self._process = subprocess.Popen(
                [config.get("python", sys.executable), "-m", "bench.harness.job", role], env=environment(),
                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid
        self.say(json.dumps(config))

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `hear` tells
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()

    def hear(self, expected: str | None = None) -> str:
        """Its next line. Waits without a limit: a job that fails or is killed ends, and that ends the wait."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (expected is not None and line != expected):
            raise SystemExit(f"a job said {line!r} where {expected or 'its record'!r} was due")
        return line

    def part(self) -> None:
        """Tells it to end, by the end of its stdin."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        assert self._process.stdout is not None
        self.part()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        # What it has left is in its process group. Some of those clean up shared memory, so they get a moment.
        deadline_s = time.monotonic() + _LINGER_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline_s:
                os.killpg(self.pid, 0)
                time.sleep(0.05)
            os.killpg(self.pid, signal.SIGKILL)


class Jobs:
    """All jobs of one run.

    Attributes:
        began_ns: When the first job was started, or the last `again`.
        went_ns: When all had imported what they need and were let go.
    """

    def __init__(self, jobs: list[Job], began_ns: int) -> None:
        self._all = jobs
        self._jobs = jobs[:]  # those that have something to do
        self.began_ns = began_ns
        self.went_ns = 0

    @property
    def pids(self) -> list[int]:
        return [job.pid for job in self._jobs]

    def limited(self, limit_s: float | None) -> contextlib.AbstractContextManager[None]:
        """Kills jobs that are still at work after this time, because some contenders can hang."""
        return _killed_after(limit_s, self._all)

    def go(self) -> None:
        """Lets all go at once; returns when each has its first batch."""
        for job in self._jobs:
            job.hear("ready")
        self.went_ns = time.monotonic_ns()
        for job in self._jobs:
            job.say("go")
        for job in self._jobs:
            job.hear("first")

    def close(self) -> None:
        """After `stop`: closes the loaders. The processes wait for `again`, or for their end."""
        for job in self._jobs:
            job.say("close")
        for job in self._jobs:
            job.hear("closed")

    def again(self, configs: list[dict[str, Any]]) -> None:
        """After `close`: a job for each configuration. Those that exist come first, with what they have imported."""
        self.began_ns = time.monotonic_ns()
        for job, config in zip(self._all, configs, strict=False):
            job.say(json.dumps(config))
        self._all += [Job(config) for config in configs[len(self._all) :]]
        self._jobs = self._all[: len(configs)]

    def kill(self) -> None:
        _kill(self._all)

    def stay_on(self, cores: list[int]) -> None:
        """Keeps all threads of the jobs, and what the jobs start from now on, on these cores."""
        for pid in self.pids:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cores)

    def stop(self) -> list[dict[str, Any]]:
        """Ends the loops of all jobs; returns what each of them saw."""
        for job in self._jobs:
            job.say("stop")
        return [json.loads(job.hear()) for job in self._jobs]


@contextlib.contextmanager
def started(configs: list[dict[str, Any]], limit_s: float | None = None) -> Iterator[Jobs]:
    """A job for each configuration; the jobs are ended at the end.

    Args:
        configs: One per job.
        limit_s: See `Jobs.limited`.
    """
    jobs: list[Job] = []
    began_ns = time.monotonic_ns()
    try:
        jobs.extend(Job(config) for config in configs)
        found = Jobs(jobs, began_ns)
        with found.limited(limit_s):
            yield found
    finally:
        for job in jobs:
            job.part()
        for job in jobs:
            job.end()


@contextlib.contextmanager
def serving(config: dict[str, Any], limit_s: float) -> Iterator[Job]:
    """A contender's process that serves jobs and listens; it is ended at the end."""
    service = Job(config, "service")
    try:
        with _killed_after(limit_s, [service]):
            service.hear("ready")
        yield service
    finally:
        service.end()


@contextlib.contextmanager
def _killed_after(limit_s: float | None, jobs: list[Job]) -> Iterator[None]:
    if limit_s is None:
        yield
        return
    watch = threading.Timer(limit_s, _kill, [jobs])
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _kill(jobs: list[Job]) -> None:
    for job in jobs:
        job.kill()
