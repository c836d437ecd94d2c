"""The verdict on a job that waits though the workers are busy: which stage of a row takes long, and what would help."""

from __future__ import annotations

import math

from prepserver.pipeline.ops import OPS
from prepserver.telemetry.facts import SLACK, STARVED, Facts, FullCache
from prepserver.telemetry.finding import Verdict, percent, up_to, workers_are_busy

_MAIN = 0.3  # a stage that takes this fraction of a row's time is named
_WHOLE = 0.95  # a cache that holds this part of a dataset or more is large enough


def slow_rows(facts: Facts, waits: str) -> Verdict:
    """Returns the verdict; `waits` says how long the loop waits."""
    total_s = sum(facts.stages.values())
    shares = {name: spent_s / total_s for name, spent_s in facts.stages.items()} if total_s > 0 else {}
    main = sorted((name for name in shares if shares[name] >= _MAIN), key=lambda name: -shares[name])
    others = 1.0 - facts.used / facts.busy_workers if facts.busy_workers > 0 else 0.0
    is_shared = others >= SLACK
    is_starved = facts.workers_starved >= STARVED and facts.run_share >= SLACK
    more = 0 if is_starved else facts.more_workers

    why = [f"{waits}, and {workers_are_busy(facts.workers)} {percent(facts.workers_busy)} of the time"]
    why.append(_row(total_s, shares) if shares else "No row has been made")
    causes, cures = main[:], [_cure(name, shares[name], facts) for name in main[:2]]
    if is_shared:
        why.append(f"Other streams take {percent(others)} of the workers' time")
        cures.append("give jobs on the same data the same order and seed, so that they share one pass")
    cache = facts.full_cache
    saved = sum(shares.get(stage, 0.0) for stage in _SAVES[cache.form]) if cache is not None else 0.0
    if cache is not None and cache.part < _WHOLE and saved >= _MAIN:
        why.append(f"The cache is full and holds only {percent(cache.part)} of the samples")
        causes.insert(0, "cache")
        cures.insert(0, _larger(cache, saved, facts))
    if facts.pure_kernels:
        cures.insert(0, f"turn on the compiled kernels, which decode twice as fast (off: {facts.pure_kernels})")
    if is_starved:
        why.append(
            f"The machine's {facts.cores:g} cores are fully used: {percent(facts.workers_starved)} of the time a "
            "worker is ready to run and gets no core"
        )
        cures.append("free some cores (more workers would not help)")
        return Verdict("host-CPU-bound", tuple(causes) or ("workers",), ". ".join(why), "; ".join(cures), facts.waiting)
    if is_shared:
        causes.append("other streams")
    if more or not main:
        causes.append("workers")
    if more:
        # Where decoding takes long, nothing is simpler than more workers.
        cures.insert(0 if not main or main[0] == "decode" else len(cures), _more_workers(more, facts))
    elif not main:
        pack = ", or `prepserver pack`" * facts.remedies.packs
        cures.append(f"use cheaper ops{pack}: no core is left for more workers")
    return Verdict("data-bound", tuple(causes), ". ".join(why), "; ".join(cures), facts.waiting)


def _row(total_s: float, shares: dict[str, float]) -> str:
    bars = [
        f"{name} {percent(share)}" for name, share in sorted(shares.items(), key=lambda each: -each[1]) if share > 0.01
    ]
    return f"A row takes {1e3 * total_s:.2f} worker ms ({', '.join(bars)})"


def _more_workers(more: int, facts: Facts) -> str:
    faster = min(facts.wanted_per_s, facts.images_per_s * (1 + more / max(facts.busy_workers, 1.0)))
    idle = f", which {facts.cores_idle:.1f} idle cores can run" if facts.run_share > SLACK else ""
    return f"start {more} more worker{'s' if more > 1 else ''}{idle}: {up_to(facts, faster)}"


_SAVES = {"encoded": ("read",), "decoded": ("read", "decode")}  # the stages that a cached sample skips


def _larger(cache: FullCache, saved: float, facts: Facts) -> str:
    need = f"{math.ceil(cache.all_bytes / 2**30)}G" if cache.all_bytes >= 1 << 30 else f"{(cache.all_bytes >> 20) + 1}M"
    flag = ", or --cache-memory" if cache.where == "memory" else ""
    less = (
        'a smaller Resize at the start, or cache="encoded"' if cache.form == "decoded" else "a folder on a local disk"
    )
    faster = min(facts.wanted_per_s, facts.images_per_s / max(1 - saved, 0.02))
    return (
        f'give the cache room for all samples: {cache.where} = "{need}" under [cache]{flag} '
        f"({up_to(facts, faster)}). If there is no such room: {less}"
    )


def _cure(stage: str, share: float, facts: Facts) -> str:
    faster = min(facts.wanted_per_s, facts.images_per_s / (1 - share)) if share < 1 else facts.wanted_per_s
    effect = f"without this stage: {up_to(facts, faster)}"
    if stage == "read":
        return f"{_cheaper_reading(facts)} ({effect})"
    if stage == "decode":
        return _cheaper_decoding(facts, effect)
    op = stage.removeprefix("op ")
    if not facts.remedies.images:
        return f"make {stage} cheaper, or do its work once and store the results ({effect})"
    return f"make {stage} cheaper: put it after ops that make images smaller{_elsewhere(op)} ({effect})"


def _cheaper_reading(facts: Facts) -> str:
    can, ways = facts.remedies, []
    if can.encoded and not facts.cache:
        ways.append('keep samples in memory with cache="encoded"')
    if facts.reads_plugin:
        ways.append("make the Dataset's `__getitem__` cheaper")
        if can.packs:
            ways.append("let `prepserver pack` run it once")
    else:
        ways.append("read from faster storage")
        if can.packs:
            ways.append("`prepserver pack` the dataset into a few large files")
        if can.arrays:
            ways.append("store the numbers as .npy files and read them with Arrays")
    return ", or ".join(ways)


def _cheaper_decoding(facts: Facts, effect: str) -> str:
    can, ways = facts.remedies, []
    if not can.images:
        return f"leave out columns that are not needed: each is copied by itself ({effect})"
    if can.decoded and facts.cache != "decoded":
        ways.append('cache="decoded" keeps it in memory')
    if can.packs:
        ways.append("`prepserver pack --form pixels` keeps it on disk")
    if not ways:
        return f"make the images smaller, once ({effect})"
    shrink = ". If images are far larger than the rows, `prepserver pack --max-side PIXELS` shrinks them once"
    return f"decode each sample once: {', '.join(ways)} ({effect}){shrink * can.shrinks}"


_ON_DEVICE = frozenset(("ColorJitter", "Normalize", "RandAugment", "RandomErasing", "ToDtype", "ToLayout"))
"""Ops of a pipeline that `device_ops` takes, too."""


def _elsewhere(op: str) -> str:
    if op in _ON_DEVICE:
        return ", or move it to the GPU with device_ops="
    return "" if op in OPS else ", if it changes images, or compile it"  # a plug-in
