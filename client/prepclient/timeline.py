"""Records some steps of a training loop, and writes them together with the chunks that their rows came from."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prepclient import checks
from prepclient.errors import PrepClientError
from prepclient.steps import Step
from prepserver.pipeline.checks import integer
from prepserver.protocol.trace import MadeChunk, Told, Trace, Ways

log = logging.getLogger("prepclient")


class _Took(NamedTuple):
    """A step without its tensors, and when the loop asked for it, received it, and received the one before."""

    step: Step
    asked_ns: int
    left_ns: int
    before_ns: int


class Timeline:
    """A recording of the next `steps` steps of `job`.

    With `on_cpu` the rows are copied inside `next()`; a device copies them on a stream of its own.

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
        """Records a step; returns whether it was the last one.

        The loop asked for it at `asked_ns` and received it at `left_ns`. It had received the batch before at
        `before_ns`, which is 0 for the first batch of an epoch.
        """
        self._steps.append(_Took(step._replace(fields={}), asked_ns, left_ns, before_ns))
        self._left -= 1
        return self._left <= 0

    def write(self, about_job: Callable[[int], dict[str, Any]]) -> None:
        """Writes the file. A failure is only logged, because no training should end for it.

        `about_job` asks the daemon about this job, including the chunks that were made since a given time.
        """
        if not self._steps:
            return
        try:
            job = about_job(0)  # from the start, because the first rows were made before they were asked for
            chunks = [MadeChunk(*each) for each in job.get("chunks", ())]
            told = [Told(*each) for each in job.get("told", ())]
            self._path.write_bytes(self._rendered(chunks, told, job.get("stream")))
            log.info("the timeline of %d steps is in %s", len(self._steps), self._path)
        except (OSError, PrepClientError, TypeError, ValueError) as e:
            log.warning("no timeline in %s: %s", self._path, e)

    def _rendered(self, chunks: Iterable[MadeChunk], told: Sequence[Told], stream: int | None) -> bytes:
        start, since_ns = self._steps[0].step.batch.start, self._steps[0].asked_ns
        trace = Trace(time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_REALTIME))
        process, pid = f"job {self._job}", os.getpid()
        loop = trace.track(pid, process, "training loop", threading.get_native_id())
        announced = trace.track(pid, process, "rows")
        # Copies to a device overlap, but slices of a track must not; tracks of the same name are shown as one.
        copies = itertools.cycle([trace.track(pid, process, "copies") for _ in range(0 if self._on_cpu else 4)])
        mine = [each for each in chunks if each.stream == stream and each.position + each.rows > start]
        others = [each for each in chunks if each.stream != stream and each.ended_ns >= since_ns]
        ways = Ways(trace, mine, [each for each in told if each.upto > start])
        flows = {
            step.batch.start: ways.to(step.batch.start, step.batch.stop, step.ready_ns) for step, *_ in self._steps
        }
        afters: list[_Took | None] = [*self._steps[1:], None]
        for (step, asked_ns, left_ns, _), after in zip(self._steps, afters, strict=True):
            batch = step.batch
            copying_ms = step.copy_ns / 1e6
            trace.begin(loop, "next", asked_ns, start=batch.start, stop=batch.stop, copying_ms=copying_ms)
            if step.wait_ns:
                trace.span(loop, "loading", step.ready_ns - step.wait_ns, step.ready_ns)
            for copy in step.copied:
                track = loop if self._on_cpu else next(copies)
                trace.span(track, "copying", copy.began_ns, copy.ended_ns, flows.get(copy.start, ()), start=copy.start)
            trace.end(loop, left_ns)
            if after is not None and after.before_ns:
                trace.span(loop, "computing", left_ns, after.asked_ns, flows[batch.start], start=batch.start)
        trace.chunks([*mine, *others], ways.of_chunks)
        trace.told(announced, ways.of_told)
        return trace.content()
