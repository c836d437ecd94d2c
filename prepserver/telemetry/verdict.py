"""What limits a job, why, and what to do: a pure function of counters.

The training loop's time has three parts: it waits for rows, it waits while they are copied, and it works. Each wait
that takes the fraction `NOTICED` of it or more is a finding, and the largest finding is the verdict. If the loop waits
for rows, the verdict names the cause: another job, its own ranks, or the workers, and then the workers' slow stages.
"""

from __future__ import annotations

from dataclasses import replace

from prepserver.telemetry.facts import BUSY, DYING, NOTICED, SLACK, STARVED, Facts
from prepserver.telemetry.finding import Verdict, percent, rate, up_to, workers_are_busy
from prepserver.telemetry.rates import WINDOW_S
from prepserver.telemetry.slow_rows import slow_rows

LEAST_S, LEAST_BATCHES = 2.0, 4
"""A shorter time or fewer batches say little, because the first batches come from an empty or a full ring."""

_GPU_IDLE = 0.7
_MANY_BAD = 0.1  # from this fraction on, a job learns something else than its dataset
_FULL = 0.05  # cores of which less than this fraction is idle are fully used


def judge(facts: Facts) -> Verdict:
    """The verdict on one job."""
    if facts.span_s < LEAST_S:
        return Verdict("not enough data", why=f"the job has been watched for only {facts.span_s:.0f} s")
    if facts.batches < LEAST_BATCHES and facts.waiting < 1.0:
        return Verdict("not enough data", why=f"the job has taken only {facts.batches} batches")
    if facts.images_per_s <= 0 and facts.waiting < 1.0:
        stretch = f"in the last {facts.span_s:.0f} s"
        return Verdict("not enough data", why=f"the job took no batch {stretch}: it evaluates, saves, or has stopped")
    # Rates count the whole span, and so must what can be gained: a loop that is mostly elsewhere gains little.
    facts = replace(facts, waiting=facts.waiting * facts.in_epochs, copying=facts.copying * facts.in_epochs)
    found = []
    if facts.waiting >= NOTICED:
        found.append(_waiting(facts))
    if facts.copying >= NOTICED:
        found.append(_copying(facts))
    # A loop that waits for rows needs no core, but one that copies does: without one, every copy is late.
    if facts.loop_starved >= STARVED and 1.0 - facts.waiting >= SLACK:
        found.append(_starved_loop(facts))
    found.sort(key=lambda each: -each.lost)
    if facts.bad >= _MANY_BAD:
        found.insert(0, _bad_samples(facts))
    if not found:
        return _fine(facts)
    first, *rest = found
    also = tuple(each.title for each in rest)
    return Verdict(first.kind, first.causes, first.why, first.next, first.lost, also)


def _bad_samples(facts: Facts) -> Verdict:
    return Verdict(
        "data-bound", ("bad samples",),
        f"{percent(facts.bad)} of the rows hold another sample, or nothing, because their own cannot be used",
        "see why in the job's log, or by `prepserver audit`; on_error='raise' stops at the first one",
    )  # fmt: skip


def _fine(facts: Facts) -> Verdict:
    ready = f"rows were ready: the loop waited {percent(facts.waiting)} of its time for them"
    if facts.gpu_busy is not None and facts.gpu_busy < _GPU_IDLE:
        return Verdict(
            "host-CPU-bound", ("loop",),
            f"the GPU is busy {percent(facts.gpu_busy)} of the time, though {ready}",
            "find what keeps the training script from feeding the GPU: .item(), .cpu() or print in each step, many "
            "small kernels (torch.compile or CUDA graphs join them), or Python code between two batches; "
            "`py-spy top --pid PID` shows it",
            1.0 - facts.gpu_busy,
        )  # fmt: skip
    if facts.inline or facts.workers_busy < SLACK:
        more = f"; the workers are busy {percent(facts.workers_busy)} of the time" if not facts.inline else ""
        return Verdict("compute-bound", (), f"{ready}{more}. The training step is the limit, as it should be")
    return Verdict("healthy", (), f"{ready}; the workers are busy {percent(facts.workers_busy)} of the time")


def _waiting(facts: Facts) -> Verdict:
    lost = facts.waiting
    waits = f"the loop waits {percent(lost)} of its time for rows ({rate(facts.images_per_s)})"
    if facts.inline:
        return Verdict(
            "data-bound", ("inline",), f"{waits}: with inline=True the training process makes the rows itself",
            f"pass workers=N instead of inline=True; rows in time would give {up_to(facts, facts.wanted_per_s)}", lost,
        )  # fmt: skip
    cause = facts.main_wait
    if cause.startswith("job "):
        alone = min(facts.wanted_per_s, facts.spare_factor * facts.images_per_s)
        name = cause.removeprefix("job ")
        if " of uid " in name:
            return Verdict(
                "data-bound", (cause,),
                f"{waits}: {cause} shares the stream, is slower, and its unread rows fill the ring",
                "nothing: the job of another user that holds others back for some seconds gets a separate stream; if "
                "this stays, there is no memory for one (see --memory of the daemon)", lost,
            )  # fmt: skip
        return Verdict(
            "data-bound", (cause,),
            f"{waits}: {cause} shares the stream, is slower, and its unread rows fill the ring",
            f'close the client of job {name} if it is no longer used, such as one of an earlier notebook cell; or pass '
            f'joining=Joining(lag="detach") in that job: it then reads a separate stream, so rows are made twice, and '
            f"this job could get {up_to(facts, alone)}", lost,
        )  # fmt: skip
    if cause == "ranks":
        return Verdict(
            "data-bound", ("ranks",), f"{waits}: ranks of this job have not attached, or take no batches",
            "start the missing ranks, or find out what blocks them: all ranks of a job advance together", lost,
        )  # fmt: skip
    if cause == "start" or cause.startswith("stream "):
        return Verdict(
            "data-bound", ("joining",),
            f"{waits}: its shared stream has not reached this job's position yet",
            "nothing: this happens once, and then the jobs share; Joining(wait_s=0) avoids both", lost,
        )  # fmt: skip
    if facts.workers_busy >= BUSY or facts.workers_busy + facts.workers_starved >= BUSY:
        return slow_rows(facts, waits)
    if facts.workers_died >= DYING:
        return Verdict(
            "data-bound", ("dying workers",),
            f"{waits}, and {facts.workers_died} workers ended or were killed in the last "
            f"{min(facts.span_s, WINDOW_S):.0f} s: other workers must make again what those had in hand",
            "see the daemon's log, which says how each worker ended and at which sample, and `prepserver quarantine`; "
            "then repair or remove these samples, or mend the op", lost,
        )  # fmt: skip
    if facts.cores_idle < _FULL * facts.cores:
        return Verdict(
            "host-CPU-bound", ("cores",),
            f"{waits}, although the workers are busy only {percent(facts.workers_busy)} of the time: the machine's "
            f"{facts.cores:g} cores are fully used, mostly by other processes",
            "run fewer training processes or other programs at a time; more workers would not help", lost,
        )  # fmt: skip
    if facts.ring_rows < 3 * facts.round_rows:
        return Verdict(
            "data-bound", ("ring",),
            f"{waits}, although the workers are busy only {percent(facts.workers_busy)} of the time: the ring holds "
            f"{facts.ring_rows} rows, less than three batches, so they cannot work ahead",
            "pass a larger prefetch=, or give the daemon more --memory; rows in time would give "
            f"{up_to(facts, facts.wanted_per_s)}", lost,
        )  # fmt: skip
    return Verdict(
        "data-bound", ("bursts",),
        f"{waits}, although the workers are busy only {percent(facts.workers_busy)} of the time: the loop takes "
        f"batches in bursts that are larger than the ring of {facts.ring_rows} rows",
        "pass a larger prefetch= (and give the daemon more --memory), or start more workers for the bursts", lost,
    )  # fmt: skip


def _copying(facts: Facts) -> Verdict:
    fewer = (
        "keep rows uint8 (no ToDtype or Normalize among the ops) and pass normalize= and dtype= with "
        'device="cuda", which apply them on the GPU; on the CPU they are this work themselves, and zero_copy=True '
        "without them saves the copy"
    )
    if not facts.remedies.images:
        fewer = "leave out columns that are not needed, and give the others small types; a kinds.Array is one copy"
    return Verdict(
        "copy-bound", ("copy",),
        f"the loop waits {percent(facts.copying)} of its time while rows that are ready are copied or converted "
        f"({rate(facts.images_per_s)})",
        f"copy fewer bytes: {fewer}. A PinningWarning in the log also explains slow copies. "
        f"Without the wait: {up_to(facts, facts.images_per_s / max(1 - facts.copying, 0.01))}",
        facts.copying,
    )  # fmt: skip


def _starved_loop(facts: Facts) -> Verdict:
    fewer = "start fewer workers, or " if facts.workers > 1 and facts.workers_busy >= SLACK else ""
    return Verdict(
        "host-CPU-bound", ("loop",),
        f"the training process is ready to run and gets no core {percent(facts.loop_starved)} of the time; "
        f"{workers_are_busy(facts.workers)} {percent(facts.workers_busy)} of it",
        f"{fewer}stop other programs on this machine's {facts.cores:g} cores", facts.loop_starved,
    )  # fmt: skip
