"""Records some steps of a training loop, and writes them with the workers' chunks that their rows came from."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from prepclient import checks
from prepclient.errors import PrepClientError
from prepclient.stage import Step
from prepserver.protocol.trace import MadeChunk, Place, Trace

log = logging.getLogger("prepclient")


class _Took(NamedTuple):
    """A step: rows [start, stop), when the loop asked, they were there and it got them, and the loop's time before."""

    start: int
    stop: int
    asked_ns: int
    left_ns: int
    ready_ns: int
    wait_ns: int
    copy_ns: int
    before_ns: int


class Timeline:
    """The steps of one loop.

    Args:
        path: Where to write.
        steps: How many steps to record.
        job: The run's name.
        on_cpu: Whether `next()` itself copies the rows; a device does so on a stream of its own.

    Raises:
        InvalidSpec: `path` is no path, or `steps` is not a whole number or is below 1.
    """

    def __init__(self, path: str | os.PathLike[str], steps: int, job: str, *, on_cpu: bool) -> None:
        self._path = Path(checks.path("path", path))
        self._left = checks.whole("steps", steps, 1, 10**6)
        self._job = job
        self._on_cpu = on_cpu
        self._steps: list[_Took] = []

    def step(self, step: Step, asked_ns: int, left_ns: int, before_ns: int) -> bool:
        """Notes a step; returns whether it was the last one to be recorded.

        Args:
            step: What the loop got.
            asked_ns: When it asked.
            left_ns: When it got it.
            before_ns: When it got its last batch; 0 if this is the first one of an epoch.
        """
        batch = step.batch
        took = _Took(
            batch.start, batch.stop, asked_ns, left_ns, step.ready_ns, step.wait_ns, step.copy_ns, before_ns
        )  # fmt: skip
        self._steps.append(took)
        self._left -= 1
        return self._left <= 0

    def write(self, about_job: Callable[[int], dict[str, Any]]) -> None:
        """Writes the file; a failure is logged, because no training should end for it.

        Args:
            about_job: Asks the daemon for this job, with the chunks that were made since a time.
        """
        if not self._steps:
            return
        try:
            job = about_job(0)  # the first rows were made before they were asked for
            chunks = [MadeChunk(*each) for each in job.get("chunks", ())]
            self._path.write_text(self._rendered(chunks, job.get("stream")), encoding="utf-8")
            log.info("the timeline of %d steps is in %s", len(self._steps), self._path)
        except (OSError, PrepClientError, TypeError, ValueError) as e:
            log.warning("no timeline in %s: %s", self._path, e)

    def _rendered(self, chunks: Iterable[MadeChunk], stream: int | None) -> str:
        start, since_ns = self._steps[0].start, self._steps[0].asked_ns
        trace, pid, tid = Trace(), os.getpid(), threading.get_native_id()
        trace.track(pid, tid, f"job {self._job}", "training loop")
        mine = [each for each in chunks if each.stream == stream and each.position + each.rows > start]
        others = [each for each in chunks if each.stream != stream and each.ended_ns >= since_ns]
        trace.chunks([*mine, *others])
        afters: list[_Took | None] = [*self._steps[1:], None]
        for took, after in zip(self._steps, afters, strict=True):
            more = {"start": took.start, "stop": took.stop, "copying_ms": took.copy_ns / 1e6}
            trace.span("next", Place(pid, tid, took.asked_ns), took.left_ns, **more)
            if took.wait_ns:
                trace.span("loading", Place(pid, tid, took.ready_ns - took.wait_ns), took.ready_ns)
            if self._on_cpu and took.copy_ns:
                trace.span("copying", Place(pid, tid, took.ready_ns), min(took.ready_ns + took.copy_ns, took.left_ns))
            on = [Place(pid, tid, min(took.ready_ns + 1, took.left_ns))]
            if after is not None and after.before_ns:
                trace.span("computing", Place(pid, tid, took.left_ns), after.asked_ns)
                on.append(Place(pid, tid, took.left_ns + 1))
            for each in mine:
                if each.position < took.stop and took.start < each.position + each.rows:
                    trace.flow([Place(each.pid, each.pid, each.ended_ns - 1), *on])
        return trace.text()
