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
from prepclient.stages import Step
from prepserver.pipeline.checks import integer
from prepserver.protocol.trace import MadeChunk, Place, Trace

log = logging.getLogger("prepclient")


class _Took(NamedTuple):
    """A step without its tensors: when the loop asked for it, got it, and had got the one before."""

    step: Step
    asked_ns: int
    left_ns: int
    before_ns: int


class Timeline:
    """The next `steps` steps of the loop of `job`.

    With `on_cpu`, `next()` itself copies the rows; a device does so on a stream of its own.

    Raises:
        InvalidSpec: `path` is no path, or `steps` is not a whole number or is below 1.
    """

    def __init__(self, path: str | os.PathLike[str], steps: int, job: str, *, on_cpu: bool) -> None:
        self._path = Path(checks.path("path", path))
        self._left = integer("steps", steps, 1, 10**6)
        self._job = job
        self._on_cpu = on_cpu
        self._steps: list[_Took] = []

    def step(self, step: Step, asked_ns: int, left_ns: int, before_ns: int) -> bool:
        """Notes a step; returns whether it was the last one.

        The loop asked for it at `asked_ns`, got it at `left_ns`, and had got the batch before at `before_ns`: 0 for the
        first one of an epoch.
        """
        self._steps.append(_Took(step._replace(fields={}), asked_ns, left_ns, before_ns))
        self._left -= 1
        return self._left <= 0

    def write(self, about_job: Callable[[int], dict[str, Any]]) -> None:
        """Writes the file; a failure is logged, because no training should end for it.

        `about_job` asks the daemon for this job, with the chunks that were made since a time.
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
        start, since_ns = self._steps[0].step.batch.start, self._steps[0].asked_ns
        trace, pid, tid = Trace(), os.getpid(), threading.get_native_id()
        trace.track(pid, tid, f"job {self._job}", "training loop")
        mine = [each for each in chunks if each.stream == stream and each.position + each.rows > start]
        others = [each for each in chunks if each.stream != stream and each.ended_ns >= since_ns]
        trace.chunks([*mine, *others])
        afters: list[_Took | None] = [*self._steps[1:], None]
        for took, after in zip(self._steps, afters, strict=True):
            step, batch = took.step, took.step.batch
            more = {"start": batch.start, "stop": batch.stop, "copying_ms": step.copy_ns / 1e6}
            trace.span("next", Place(pid, tid, took.asked_ns), took.left_ns, **more)
            if step.wait_ns:
                trace.span("loading", Place(pid, tid, step.ready_ns - step.wait_ns), step.ready_ns)
            if self._on_cpu and step.copy_ns:
                trace.span("copying", Place(pid, tid, step.ready_ns), min(step.ready_ns + step.copy_ns, took.left_ns))
            on = [Place(pid, tid, min(step.ready_ns + 1, took.left_ns))]
            if after is not None and after.before_ns:
                trace.span("computing", Place(pid, tid, took.left_ns), after.asked_ns)
                on.append(Place(pid, tid, took.left_ns + 1))
            for each in mine:
                if each.position < batch.stop and batch.start < each.position + each.rows:
                    trace.flow([Place(each.pid, each.pid, each.ended_ns - 1), *on])
        return trace.text()
