"""What limits a job, why, and what to do: a pure function of counters.

The training loop's time has three parts: it waits for rows, it waits while they are copied, and it works. Each wait
that takes the fraction `NOTICED` of it or more is a finding, and the largest finding is the verdict. If the loop waits
for rows, the verdict names the cause: another job, its own ranks, or the workers, and then the workers' slow stages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from prepserver.pipeline.ops import OPS
from prepserver.telemetry.facts import BUSY, DYING, NOTICED, STARVED, Facts, FullCache
from prepserver.telemetry.rates import WINDOW_S

Kind = Literal["not enough data", "healthy", "compute-bound", "data-bound", "copy-bound", "host-CPU-bound"]
FINE: tuple[Kind, ...] = ("not enough data", "healthy", "compute-bound")
"""Verdicts that ask for nothing."""

LEAST_S, LEAST_BATCHES = 2.0, 4
"""A shorter time or fewer batches say little, because the first batches come from an empty or a full ring."""

_MAIN = 0.3  # a stage that takes this fraction of a row's time is named
_GPU_IDLE = 0.7
_SLACK = 0.5
_MANY_BAD = 0.1  # from this fraction on, a job learns something else than its dataset
_FULL = 0.05  # cores of which less than this fraction is idle are fully used
_WHOLE = 0.95  # a cache that holds this part of a dataset or more is large enough


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a job."""

    kind: Kind  # the verdict
    # What exactly: stages (``read``, ``decode``, ``op NAME``), ``workers``, ``job NAME``, ``ranks``, ``joining``,
    # ``bad samples``, ``dying workers``,
    # ``ring``, ``bursts``, ``cache``, ``other streams``, ``inline``, ``loop``, ``cores``, ``copy``;
    # the main one first.
    causes: tuple[str, ...] = ()
    why: str = ""  # the evidence in figures
    next: str = ""  # what to do, with its expected effect; empty if there is nothing to do
    lost: float = 0.0  # fraction of the loop's time that it costs
    also: tuple[str, ...] = ()  # smaller findings, as `title`

    @property
    def is_fine(self) -> bool:
        """Whether there is nothing to do."""
        return self.kind in FINE

    @property
    def title(self) -> str:
        """The verdict in a few words."""
        return f"{self.kind} ({', '.join(self.causes)})" if self.causes else self.kind

    def to_plain(self) -> dict[str, object]:
        """As plain values, for JSON."""
        return {
            "verdict": self.title, "kind": self.kind, "causes": list(self.causes), "why": self.why, "next": self.next,
            "is_fine": self.is_fine, "lost_fraction": round(self.lost, 3), "also": list(self.also),
        }  # fmt: skip


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
    if facts.loop_starved >= STARVED and 1.0 - facts.waiting >= _SLACK:
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
        f"{_percent(facts.bad)} of the rows hold another sample, or nothing, because their own cannot be used",
        "see why in the job's log, or by `prepserver audit`; on_error='raise' stops at the first one",
    )  # fmt: skip


def _fine(facts: Facts) -> Verdict:
    ready = f"rows were ready: the loop waited {_percent(facts.waiting)} of its time for them"
    if facts.gpu_busy is not None and facts.gpu_busy < _GPU_IDLE:
        return Verdict(
            "host-CPU-bound", ("loop",),
            f"the GPU is busy {_percent(facts.gpu_busy)} of the time, though {ready}",
            "find what keeps the training script from feeding the GPU: .item(), .cpu() or print in each step, many "
            "small kernels (torch.compile or CUDA graphs join them), or Python code between two batches; "
            "`py-spy top --pid PID` shows it",
            1.0 - facts.gpu_busy,
        )  # fmt: skip
    if facts.inline or facts.workers_busy < _SLACK:
        more = f"; the workers are busy {_percent(facts.workers_busy)} of the time" if not facts.inline else ""
        return Verdict("compute-bound", (), f"{ready}{more}. The training step is the limit, as it should be")
    return Verdict("healthy", (), f"{ready}; the workers are busy {_percent(facts.workers_busy)} of the time")


def _waiting(facts: Facts) -> Verdict:
    lost = facts.waiting
    waits = f"the loop waits {_percent(lost)} of its time for rows ({_rate(facts.images_per_s)})"
    if facts.inline:
        return Verdict(
            "data-bound", ("inline",), f"{waits}: with inline=True the training process makes the rows itself",
            f"pass workers=N instead of inline=True; rows in time would give {_up_to(facts, facts.wanted_per_s)}", lost,
        )  # fmt: skip
    cause = facts.main_wait
    if cause.startswith("job "):
        alone = min(facts.wanted_per_s, facts.spare_factor * facts.images_per_s)
        name = cause.removeprefix("job ")
        return Verdict(
            "data-bound", (cause,),
            f"{waits}: {cause} shares the stream, is slower, and its unread rows fill the ring",
            f'close the client of job {name} if it is no longer used, such as one of an earlier notebook cell; or pass '
            f'joining=Joining(lag="detach") in that job: it then reads a separate stream, so rows are made twice, and '
            f"this job could get {_up_to(facts, alone)}", lost,
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
        return _loading(facts, waits)
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
            f"{waits}, although the workers are busy only {_percent(facts.workers_busy)} of the time: the machine's "
            f"{facts.cores:g} cores are fully used, mostly by other processes",
            "run fewer training processes or other programs at a time; more workers would not help", lost,
        )  # fmt: skip
    if facts.ring_rows < 3 * facts.round_rows:
        return Verdict(
            "data-bound", ("ring",),
            f"{waits}, although the workers are busy only {_percent(facts.workers_busy)} of the time: the ring holds "
            f"{facts.ring_rows} rows, less than three batches, so they cannot work ahead",
            "pass a larger prefetch=, or give the daemon more --memory; rows in time would give "
            f"{_up_to(facts, facts.wanted_per_s)}", lost,
        )  # fmt: skip
    return Verdict(
        "data-bound", ("bursts",),
        f"{waits}, although the workers are busy only {_percent(facts.workers_busy)} of the time: the loop takes "
        f"batches in bursts that are larger than the ring of {facts.ring_rows} rows",
        "pass a larger prefetch= (and give the daemon more --memory), or start more workers for the bursts", lost,
    )  # fmt: skip


def _loading(facts: Facts, waits: str) -> Verdict:
    lost = facts.waiting
    total_s = sum(facts.stages.values())
    shares = {name: spent_s / total_s for name, spent_s in facts.stages.items()} if total_s > 0 else {}
    main = sorted((name for name in shares if shares[name] >= _MAIN), key=lambda name: -shares[name])
    bars = ", ".join(
        f"{name} {_percent(share)}" for name, share in sorted(shares.items(), key=lambda each: -each[1]) if share > 0.01
    )
    row = f"A row takes {1e3 * total_s:.2f} worker ms ({bars})" if shares else "No row has been made"
    why = f"{waits}, and {_workers(facts.workers)} {_percent(facts.workers_busy)} of the time. {row}"
    cures = [_cure(name, shares[name], facts) for name in main[:2]]
    others = 1.0 - facts.used / facts.busy_workers if facts.busy_workers > 0 else 0.0
    if others >= _SLACK:
        why += f". Other streams take {_percent(others)} of the workers' time"
        cures.append("give jobs on the same data the same order and seed, so that they share one pass")
    cache = facts.full_cache
    saved = sum(shares.get(stage, 0.0) for stage in _SAVES[cache.form]) if cache is not None else 0.0
    is_small = cache is not None and cache.part < _WHOLE and saved >= _MAIN
    named = ["cache", *main] if is_small else main
    if cache is not None and is_small:
        why += f". The cache is full and holds only {_percent(cache.part)} of the samples"
        cures.insert(0, _larger(cache, saved, facts))
    if facts.pure_kernels:
        cures.insert(0, f"turn on the compiled kernels, which decode twice as fast (off: {facts.pure_kernels})")
    if facts.workers_starved >= STARVED and facts.run_share >= _SLACK:
        why += (
            f". The machine's {facts.cores:g} cores are fully used: {_percent(facts.workers_starved)} of the time a "
            "worker is ready to run and gets no core"
        )
        cures.append("free some cores (more workers would not help)")
        return Verdict("host-CPU-bound", tuple(named) or ("workers",), why, "; ".join(cures), lost)
    more = facts.more_workers
    if more > 0:
        faster = min(facts.wanted_per_s, facts.images_per_s * (1 + more / max(facts.busy_workers, 1.0)))
        idle = f", which {facts.cores_idle:.1f} idle cores can run" if facts.run_share > _SLACK else ""
        add = f"start {more} more worker{'s' if more > 1 else ''}{idle}: {_up_to(facts, faster)}"
        cures.insert(0 if not main or main[0] == "decode" else len(cures), add)
    causes = (*named, *(["other streams"] if others >= _SLACK else []), *(["workers"] if more > 0 or not main else []))
    if not main and not more:
        cures.append("use cheaper ops, or `prepserver pack`: no core is left for more workers")
    return Verdict("data-bound", causes, why, "; ".join(cures), lost)


_SAVES = {"encoded": ("read",), "decoded": ("read", "decode")}
"""The stages that a cached sample skips."""


def _larger(cache: FullCache, saved: float, facts: Facts) -> str:
    need = f"{math.ceil(cache.all_bytes / 2**30)}G" if cache.all_bytes >= 1 << 30 else f"{(cache.all_bytes >> 20) + 1}M"
    flag = ", or --cache-memory" if cache.where == "memory" else ""
    less = (
        'a smaller Resize at the start, or cache="encoded"' if cache.form == "decoded" else "a folder on a local disk"
    )
    faster = min(facts.wanted_per_s, facts.images_per_s / max(1 - saved, 0.02))
    return (
        f'give the cache room for all samples: {cache.where} = "{need}" under [cache]{flag} '
        f"({_up_to(facts, faster)}). If there is no such room: {less}"
    )


def _cure(stage: str, share: float, facts: Facts) -> str:
    faster = min(facts.wanted_per_s, facts.images_per_s / (1 - share)) if share < 1 else facts.wanted_per_s
    effect = f"without this stage: {_up_to(facts, faster)}"
    if stage == "read" and facts.reads_plugin:
        return f"make the Dataset's `__getitem__` cheaper, or let `prepserver pack` run it once ({effect})"
    if stage == "read":
        return f"read from faster storage, or `prepserver pack` the dataset into a few large files ({effect})"
    if stage == "decode":
        keep = 'cache="decoded" keeps it in memory, ' if not facts.keeps_decoded else ""
        return (
            f"decode each sample once: {keep}`prepserver pack --form pixels` keeps it on disk "
            f"({effect}). If images are far larger than the rows, `prepserver pack --max-side PIXELS` shrinks them once"
        )
    elsewhere = _elsewhere(stage.removeprefix("op "))
    return f"make {stage} cheaper: put it after ops that make images smaller{elsewhere} ({effect})"


_ON_DEVICE = frozenset(("ColorJitter", "Normalize", "RandAugment", "RandomErasing", "ToDtype", "ToLayout"))
"""Ops of a pipeline that `device_ops` takes, too."""


def _elsewhere(op: str) -> str:
    if op in _ON_DEVICE:
        return ", or move it to the GPU with device_ops="
    return "" if op in OPS else ", if it changes images, or compile it"  # a plug-in


def _copying(facts: Facts) -> Verdict:
    return Verdict(
        "copy-bound", ("copy",),
        f"the loop waits {_percent(facts.copying)} of its time while rows that are ready are copied or converted "
        f"({_rate(facts.images_per_s)})",
        "copy fewer bytes: keep rows uint8 (no ToDtype or Normalize among the ops) and pass normalize= and dtype= with "
        'device="cuda", which apply them on the GPU; on the CPU they are this work themselves, and zero_copy=True '
        "without them saves the copy. A PinningWarning in the log also explains slow copies. "
        f"Without the wait: {_up_to(facts, facts.images_per_s / max(1 - facts.copying, 0.01))}",
        facts.copying,
    )  # fmt: skip


def _starved_loop(facts: Facts) -> Verdict:
    fewer = "start fewer workers, or " if facts.workers > 1 else ""
    return Verdict(
        "host-CPU-bound", ("loop",),
        f"the training process is ready to run and gets no core {_percent(facts.loop_starved)} of the time; "
        f"{_workers(facts.workers)} {_percent(facts.workers_busy)} of it",
        f"{fewer}stop other programs on this machine's {facts.cores:g} cores", facts.loop_starved,
    )  # fmt: skip


def _workers(count: int) -> str:
    return "the only worker is busy" if count == 1 else f"all {count} workers are busy"


def _up_to(facts: Facts, per_s: float) -> str:
    """An expected rate, absolute and relative to the current one."""
    if facts.images_per_s <= 0:
        return "a higher rate"
    return f"up to {_rate(per_s)}, {per_s / facts.images_per_s:.1f}x"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f} images/s" if per_s >= 10 else f"{per_s:.1f} images/s"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.01 or fraction <= 0 else "under 1 %"
