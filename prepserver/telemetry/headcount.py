"""How many workers a daemon with ``workers = "auto"`` should have: a pure function of counters and time.

It adds workers while a job waits for them and cores are idle. It retires them while rings stay full without them, or
while a training process gets no core. A reason must last before it counts, and each change of direction doubles that
time, so that a machine between two numbers settles on one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prepserver.telemetry.facts import BUSY, NOTICED, STARVED, WAITS, Facts
from prepserver.telemetry.rates import WINDOW_S

GROW_S = 3.0
STARVED_S = 5.0
SPARE_S = 30.0
"""How long a reason must last. A job that evaluates may pause for longer: workers come back quickly."""

CALM_S = 600.0  # after this time without a change, the next change of direction counts as the first one

_MOST_DOUBT = 64
_READY = 0.01  # a loop that waits for a smaller fraction of its time has its rows ready
_HALF_CORE = 0.5  # if this much of a core is idle, one more worker may run on it


@dataclass(frozen=True, slots=True)
class Headcount:
    """How many workers there should be."""

    workers: int  # that number
    why: str = ""  # the reason for the last change
    lean: int = 0  # direction of the last look: 1 for more, -1 for fewer, 0 for neither
    since_s: float = 0.0  # since when it has been that direction
    changed_s: float = -math.inf  # when `workers` changed last
    last: int = 0  # direction of that change
    doubt: int = 1  # factor on the time for which a reason must last


def next_headcount(was: Headcount, jobs: Sequence[Facts], most: int, now_s: float) -> Headcount:
    """The number of workers from now on, `most` at most; call it about once a second with its last result."""
    doubt = 1 if now_s - was.changed_s >= CALM_S else was.doubt
    # The rates cover a window, so for that long after a change they include the time before it.
    target, why, patience_s = (
        (was.workers, "", 0.0) if now_s - was.changed_s < WINDOW_S else _wanted(was.workers, jobs, most)
    )
    lean = (target > was.workers) - (target < was.workers)
    if lean != was.lean or not lean:
        return replace(was, lean=lean, since_s=now_s, doubt=doubt)
    if now_s - was.since_s < patience_s * doubt:
        return replace(was, doubt=doubt)
    doubt = min(_MOST_DOUBT, 2 * doubt) if lean == -was.last else doubt
    return Headcount(target, why, 0, now_s, now_s, lean, doubt)


def _wanted(workers: int, jobs: Sequence[Facts], most: int) -> tuple[int, str, float]:
    """The number of workers that the counters ask for, the reason, and how long it must last."""
    if workers > most:
        return most, f"only {most} cores may be used", 0.0
    running = [job for job in jobs if job.images_per_s > 0 or job.waiting >= 1.0]
    if not running:
        return workers, "", 0.0  # idle workers cost no core
    starved = max(running, key=lambda job: job.loop_starved)
    # A script at a low priority never gets a core: that must not take workers from other jobs.
    others_wait = any(_waits(job) for job in running if job is not starved)
    if workers > 1 and starved.loop_starved >= STARVED and starved.loop_starved > starved.waiting and not others_wait:
        text = f"a training process is ready to run and gets no core {100 * starved.loop_starved:.0f} % of the time"
        return workers - 1, text, STARVED_S
    slow = max(running, key=lambda job: job.waiting)
    if _waits(slow) and slow.workers_busy >= BUSY:
        more = slow.more_workers or int(slow.cores_idle >= _HALF_CORE * slow.run_share)
        share = slow.run_share
        room = (
            f"{slow.cores_idle:.1f} cores are idle" if share > WAITS else f"need a core for {100 * share:.0f} % of it"
        )
        text = (
            f"a job waits {100 * slow.waiting:.0f} % of its time for rows, the workers are busy "
            f"{100 * slow.workers_busy:.0f} % of theirs, and {room}"
        )
        return min(most, workers + more), text, GROW_S
    if slow.waiting < _READY and workers > 1 and slow.busy_workers <= BUSY * (workers - 1):
        text = f"all rows are ready, and the workers are busy {100 * slow.workers_busy:.0f} % of their time"
        return workers - 1, text, SPARE_S
    return workers, "", 0.0


def _waits(job: Facts) -> bool:
    return job.waiting >= NOTICED and job.main_wait == "workers"
