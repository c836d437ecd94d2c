"""What do 1, 2 and 4 training jobs get from prepserver and from DataLoaders, and what does it cost?

Everybody reads the same photos and does the same work: decode, RandomResizedCrop to 224 (scale 0.08-1, ratio 3/4-4/3,
antialiased bilinear), horizontal flip, shuffled uint8 batches of 64.

- prepserver: one daemon with 2 workers. Each job is a `PrepClient` with its defaults, so batches are copied.
- DataLoader, Pillow: what most scripts have: `Image.open`, `resize(box=)` (torchvision's arithmetic for PIL images,
  less one copy), the default collate, `persistent_workers=True`, and 2 workers *for each job*.
- DataLoader, simplejpeg: simplejpeg and torch's antialiased uint8 resize in a DataLoader; 1 job.
- kernels alone: no loader; 2 processes run simplejpeg's whole-image decode and torch's resize on files in their own
  memory, into buffers that are used again. prepserver can be faster: it decodes only the rows that a crop needs.

With 4 jobs the DataLoaders have 8 workers and prepserver has 2. On a machine whose cores are all busy that is no
handicap for either, and it is what happens when four scripts run side by side.

A job is a process of its own. It takes batches as fast as they come and reads two pixels of every image; torch runs one
thread in it. All jobs of a cell import everything, wait for each other, and start at once. A second after each has its
first batch, a window of 4 s is measured; `bench.harness.measure` defines the figures. A daemon is started for each
cell, so that no contender shares torch's pages with an idle one; it has listed the files before. A DataLoader starts
its workers before its first batch. The wait for an epoch's first batch is measured in cells of their own, with short
epochs of 640 images and one job.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from bench.harness.case import Case, Figures, Run, say
from bench.harness.measure import run_cell
from bench.harness.rounds import Target, target_sheet, values
from bench.harness.server import running_server
from bench.harness.tables import Sheet, spread

_NAMES = {
    "kernel": "kernels alone", "prepserver": "prepserver", "torch_pillow": "DataLoader, Pillow",
    "torch_simplejpeg": "DataLoader, simplejpeg",
}  # fmt: skip
_STEADY = [("kernel", 0), ("prepserver", 1), ("torch_pillow", 1), ("torch_simplejpeg", 1)]
_STEADY += [(contender, jobs) for jobs in (2, 4) for contender in ("prepserver", "torch_pillow")]
"""(contender, jobs) in the order in which they run; 0: as many as there are workers."""


def _steady(contender: str, jobs: int) -> dict[str, Any]:
    return {"kind": "steady", "contender": contender, "jobs": jobs}


def _target(text: str, figure: str, first: tuple[str, int], second: tuple[str, int], *bound: Any) -> Target:
    return Target(text, figure, _steady(*first), _steady(*second), *bound)


_OWN, _OWN_4 = ("prepserver", 1), ("prepserver", 4)
_RATIOS = [
    _target("images/s, 1 job: prepserver / DataLoader with Pillow", "images_per_s", _OWN, ("torch_pillow", 1), 1.3),
    _target("images/s, 1 job: prepserver / kernels alone", "images_per_s", _OWN, ("kernel", 0), 0.85),
    _target("CPU s per image, 1 job: prepserver / DataLoader with Pillow", "cpu_s_per_1000", _OWN, ("torch_pillow", 1)),
    _target("CPU s per image, 4 jobs: prepserver / DataLoader with Pillow", "cpu_s_per_1000", _OWN_4,
            ("torch_pillow", 4)),
    _target("images/s in sum: prepserver 4 jobs / 1 job", "images_per_s", _OWN_4, _OWN, 3.6),
    _target("CPU s per delivered image: prepserver 4 jobs / 1 job", "cpu_s_per_1000", _OWN_4, _OWN, 0.3, "<="),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Plan:
    window_s: float
    warm_s: float
    epoch: int
    gap_epoch: int
    most_jobs: int


_FULL = _Plan(window_s=4.0, warm_s=1.0, epoch=8000, gap_epoch=640, most_jobs=4)
_SMOKE = _Plan(window_s=1.0, warm_s=0.5, epoch=800, gap_epoch=320, most_jobs=2)


def measure(run: Run) -> Figures:
    plan = _SMOKE if run.smoke else _FULL
    lists = {"steady": run.listed(plan.epoch), "gap": run.listed(plan.gap_epoch)}
    cells = [("steady", *cell) for cell in _STEADY if cell[1] <= plan.most_jobs]
    if run.smoke:
        cells.remove(("steady", "torch_simplejpeg", 1))
    cells += [("gap", "prepserver", 1), ("gap", "torch_pillow", 1)]

    def cell(kind: str, contender: str, jobs: int) -> dict[str, Any]:
        configs = [run.job(contender, lists[kind])] * (jobs or run.workers)
        window_s = plan.window_s if kind == "steady" else max(1.0, plan.window_s * 0.75)
        with contextlib.ExitStack() as stack:
            is_own = contender == "prepserver"
            server = stack.enter_context(running_server(run.scratch, run.workers)) if is_own else None
            found = run_cell(configs, plan.warm_s, window_s, server)
        say(f"{kind:6}  {_NAMES[contender]:22} {jobs or run.workers} job(s): {found['images_per_s']:.0f} images/s")
        return {"kind": kind, "contender": contender, "jobs": jobs, **found}

    say("warming up: the daemon lists the photos")
    cell("gap", "prepserver", 1)
    rounds = [[cell(*which) for which in cells] for _ in range(run.rounds(3))]
    return {"workers": run.workers, "rounds": rounds}


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    steady = Sheet(
        "Steady state",
        (
            *("contender", "jobs", "images/s in sum", "images/s per job", "CPU s per 1000", "sharing factor"),
            *("first batch, s", "PSS, MiB"),
        ),
    )
    for contender, count in dict.fromkeys((c["contender"], c["jobs"]) for c in rounds[0] if c["kind"] == "steady"):
        which, jobs, is_kernel = _steady(contender, count), count or result["workers"], contender == "kernel"
        rates = values(rounds, "images_per_s", which)
        steady.rows.append((
            _NAMES[contender], f"{jobs} processes" if is_kernel else str(jobs),
            spread(rates), spread([rate / jobs for rate in rates]),
            spread(values(rounds, "cpu_s_per_1000", which), ".2f"),
            spread(values(rounds, "sharing_factor", which), ".2f"),
            "-" if is_kernel else spread(values(rounds, "first_batch_s", which), ".2f"),
            spread(values(rounds, "pss_mib", which)),
        ))  # fmt: skip
    gaps = Sheet("Wait for the first batch of an epoch, less the usual wait, 1 job", ("contender", "ms"))
    for contender in ("prepserver", "torch_pillow"):
        waits = values(rounds, "gap_ms", {"kind": "gap", "contender": contender})
        gaps.rows.append((_NAMES[contender], spread(waits, ".1f")))
    return [steady, gaps, target_sheet("Ratios (median over rounds, min-max)", rounds, _RATIOS)]


CASE = Case("Against torch's DataLoader", measure, sheets)
