"""prepserver against torch's DataLoader: the same photos, the same work, the same number of workers.

``make bench``, or ``python bench/compare.py [--data DIR] [--smoke] [--markdown]``. See README.md for the method.
Writes ``bench/out/compare.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contenders import NAMES
from fingerprint import ROOT, fingerprint, line
from measure import run_cell
from photos import Photos, find_photos, write_list
from server import running_server
from tables import Sheet, show, spread

OUT = ROOT / "bench" / "out"
_NOISE_CORES = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often, who."""

    rounds: int
    jobs: Sequence[int]
    window_s: float
    warm_s: float
    epoch: int
    gap_epoch: int
    also: bool  # the second DataLoader too

    def cells(self) -> list[tuple[str, str, int]]:
        """(kind, contender, jobs) of one round, in the order in which they run."""
        cells = [("steady", "kernel", 0)]  # 0: as many as there are workers
        for jobs in self.jobs:
            cells += [("steady", "prepserver", jobs), ("steady", "torch_pillow", jobs)]
            if self.also and jobs == 1:
                cells.append(("steady", "torch_simplejpeg", jobs))
        return [*cells, ("gap", "prepserver", 1), ("gap", "torch_pillow", 1)]


FULL = Plan(rounds=3, jobs=(1, 2, 4), window_s=4.0, warm_s=1.0, epoch=8000, gap_epoch=640, also=True)
SMOKE = Plan(rounds=1, jobs=(1, 2), window_s=1.0, warm_s=0.5, epoch=800, gap_epoch=320, also=False)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A quotient of two cells of one round.

    Attributes:
        name: In the table.
        target: What the project asks for; None for a figure without a target.
        above: Whether the target is a floor (else a ceiling).
        of: Two (contender, jobs, figure).
    """

    name: str
    target: float | None
    above: bool
    of: tuple[tuple[str, int, str], tuple[str, int, str]]


RATIOS = [
    Ratio("images/s, 1 job: prepserver / DataLoader with Pillow", 1.3, True,
          (("prepserver", 1, "images_per_s"), ("torch_pillow", 1, "images_per_s"))),
    Ratio("images/s, 1 job: prepserver / kernels alone", 0.85, True,
          (("prepserver", 1, "images_per_s"), ("kernel", 0, "images_per_s"))),
    Ratio("CPU s per image, 1 job: prepserver / DataLoader with Pillow", None, False,
          (("prepserver", 1, "cpu_s_per_1000"), ("torch_pillow", 1, "cpu_s_per_1000"))),
    Ratio("CPU s per image, 4 jobs: prepserver / DataLoader with Pillow", None, False,
          (("prepserver", 4, "cpu_s_per_1000"), ("torch_pillow", 4, "cpu_s_per_1000"))),
    Ratio("images/s in sum: prepserver 4 jobs / 1 job", 3.6, True,
          (("prepserver", 4, "images_per_s"), ("prepserver", 1, "images_per_s"))),
    Ratio("CPU s per delivered image: prepserver 4 jobs / 1 job", 0.3, False,
          (("prepserver", 4, "cpu_s_per_1000"), ("prepserver", 1, "cpu_s_per_1000"))),
]  # fmt: skip


def main() -> None:
    arguments = _arguments()
    plan = SMOKE if arguments.smoke else FULL
    if arguments.rounds:
        plan = Plan(arguments.rounds, plan.jobs, plan.window_s, plan.warm_s, plan.epoch, plan.gap_epoch, plan.also)
    result = load(arguments.show) if arguments.show else measure(plan, arguments.data, arguments.workers)
    if not arguments.show:
        save(result, arguments.json)
    print(line(result["machine"]), f"{result['photos']}; {result['workers']} workers.", sep="\n")
    show(sheets(result), markdown=arguments.markdown)
    for warning in disturbed(result):
        print(warning)


def measure(plan: Plan, data: str | None, workers: int) -> dict[str, Any]:
    """All rounds; every contender once in each, so that a slow minute of the machine meets all of them."""
    machine = fingerprint()
    rounds: list[list[dict[str, Any]]] = []
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        photos = find_photos(data, scratch)
        run = _runner(plan, photos, scratch, workers)
        _say("warming up: the daemon's listing of the photos")
        run("gap", "prepserver", 1)
        for number in range(plan.rounds):
            cells = []
            for kind, contender, jobs in plan.cells():
                found = run(kind, contender, jobs)
                cells.append({"kind": kind, "contender": contender, "jobs": jobs, **found})
                _say(
                    f"round {number + 1}/{plan.rounds}  {kind:6}  {NAMES[contender]:22} {jobs or workers} "
                    f"{'processes' if not jobs else 'job(s)'}: {found['images_per_s']:.0f} images/s"
                )
            rounds.append(cells)
    took_s = round(time.monotonic() - began_s, 1)
    return {"machine": machine, "photos": photos.what, "workers": workers, "took_s": took_s, "rounds": rounds}


def _runner(plan: Plan, photos: Photos, scratch: Path, workers: int) -> Callable[[str, str, int], dict[str, Any]]:
    lists: dict[str, Path] = {}
    for kind, samples in (("steady", plan.epoch), ("gap", plan.gap_epoch)):
        lists[kind] = scratch / f"{kind}.txt"
        write_list(photos, samples, lists[kind])

    def run(kind: str, contender: str, jobs: int) -> dict[str, Any]:
        config = {
            "contender": contender, "list": str(lists[kind]), "batch": 64, "workers": workers, "seed": 0,
            "runtime_dir": str(scratch / "run"),
        }  # fmt: skip
        configs = [config] * (jobs or workers)
        window_s = plan.window_s if kind == "steady" else max(1.0, plan.window_s * 0.75)
        if contender != "prepserver":
            return run_cell(configs, plan.warm_s, window_s, None)
        # A daemon for each cell: an idle one would share torch's pages with the other contenders.
        with running_server(scratch, workers) as server:
            return run_cell(configs, plan.warm_s, window_s, server)

    return run


def sheets(result: dict[str, Any]) -> list[Sheet]:
    """The result as tables: medians, with min-max over the rounds."""
    main_sheet = Sheet(
        "Steady state",
        (
            *("contender", "jobs", "images/s in sum", "images/s per job", "CPU s per 1000", "sharing factor"),
            *("first batch, s", "PSS, MiB"),
        ),
    )
    for key in dict.fromkeys((c["contender"], c["jobs"]) for c in result["rounds"][0] if c["kind"] == "steady"):
        cells = _cells(result, "steady", *key)
        jobs = key[1] or result["workers"]
        is_kernel = key[0] == "kernel"
        main_sheet.rows.append((
            NAMES[key[0]], f"{jobs} processes" if is_kernel else str(jobs),
            spread([c["images_per_s"] for c in cells]),
            spread([c["images_per_s"] / jobs for c in cells]),
            spread([c["cpu_s_per_1000"] for c in cells], ".2f"),
            spread([c.get("sharing_factor") for c in cells], ".2f"),
            "-" if is_kernel else spread([c["first_batch_s"] for c in cells], ".2f"),
            spread([c["pss_mib"] for c in cells]),
        ))  # fmt: skip
    gaps = Sheet("Wait for the first batch of an epoch, less the usual wait, 1 job", ("contender", "ms"))
    for contender in ("prepserver", "torch_pillow"):
        cells = _cells(result, "gap", contender, 1)
        gaps.rows.append((NAMES[contender], spread([c["gap_ms"] for c in cells], ".1f")))
    ratios = Sheet("Ratios (median of the rounds' own, min-max)", ("ratio", "found", "to reach", "reached"))
    for ratio in RATIOS:
        values = ratio_values(result, ratio)
        if not values:
            continue
        middle = statistics.median(values)
        wanted, reached = "-", "-"
        if ratio.target is not None:
            wanted = f"{'>=' if ratio.above else '<='} {ratio.target:g}"
            reached = "yes" if (middle >= ratio.target if ratio.above else middle <= ratio.target) else "no"
            if _is_disturbed(result, ratio):
                reached = "undecided: disturbed"
        ratios.rows.append((ratio.name, spread(values, ".2f"), wanted, reached))
    return [main_sheet, gaps, ratios]


def ratio_values(result: dict[str, Any], ratio: Ratio) -> list[float]:
    """One for each round that has both cells."""
    values = []
    for cells in result["rounds"]:
        found = [
            c[figure]
            for contender, jobs, figure in ratio.of
            for c in cells
            if (c["kind"], c["contender"], c["jobs"]) == ("steady", contender, jobs)
        ]
        if len(found) == 2:
            values.append(found[0] / found[1])
    return values


def _is_disturbed(result: dict[str, Any], ratio: Ratio) -> bool:
    """Whether somebody else was at work while its figures were taken: then it proves nothing, either way."""
    wanted = {(contender, jobs) for contender, jobs, _ in ratio.of}
    return any(
        c["others_cores"] > _NOISE_CORES
        for cells in result["rounds"]
        for c in cells
        if c["kind"] == "steady" and (c["contender"], c["jobs"]) in wanted
    )


def disturbed(result: dict[str, Any]) -> list[str]:
    """A sentence, if somebody else was at work on the machine."""
    others = [c["others_cores"] for cells in result["rounds"] for c in cells]
    bad = sum(1 for x in others if x > _NOISE_CORES)
    if not bad:
        return []
    return [
        f"Disturbed: in {bad} of {len(others)} windows other processes used more than {_NOISE_CORES:g} cores "
        f"(at most {max(others):.2f}). Rates and CPU seconds are provisional."
    ]


def save(result: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _cells(result: dict[str, Any], kind: str, contender: str, jobs: int) -> list[dict[str, Any]]:
    return [
        c
        for cells in result["rounds"]
        for c in cells
        if (c["kind"], c["contender"], c["jobs"]) == (kind, contender, jobs)
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="prepserver against torch's DataLoader.")
    parser.add_argument("--data", help="a folder of JPEGs (default: $PREPSERVER_BENCH_DATA, ../shared/data/photos, or "
                        "synthetic)")  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, help="of the daemon, and of each DataLoader (default 2)")
    parser.add_argument("--rounds", type=int, help="default 3")
    parser.add_argument("--smoke", action="store_true", help="under a minute: does it run")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    parser.add_argument("--json", type=Path, default=OUT / "compare.json", help="where the figures go")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing, show the figures of this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
