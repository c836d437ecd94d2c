"""What do stored pixels save a worker, and how many bytes do they take?

A worker without a daemon (`bench.harness.worker`), one thread, files in the page cache, RandomResizedCrop(224) and a
flip: from single files, from the same photos packed as indexed JPEGs, and packed as pixels, with a shorter side of 256
and at their own size. Twelve rounds; in each, all fill the same 320 samples in turns, and ratios are taken within a
round. Then three rounds of jobs with ``--workers`` workers. The bytes of RGB are those that FFCV stores for the same
photos with ``write_mode="raw"``, less its padding.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from bench.cases.records import rate
from bench.harness.case import Case, Figures, Run
from bench.harness.rounds import Target, target_sheet, values
from bench.harness.server import run_cli
from bench.harness.tables import Sheet, spread
from bench.harness.worker import Worker, no_collection
from prepclient import Packed, PrepClient, RandomHorizontalFlip, RandomResizedCrop

_FORMS = {
    "indexed": (),
    "yuv420, 256": ("--form", "pixels", "--side", "256"),
    "rgb, 256": ("--form", "pixels", "--side", "256", "--pixels", "rgb"),
    "yuv420, own size": ("--form", "pixels"),
    "rgb, own size": ("--form", "pixels", "--pixels", "rgb"),
}
_OF_JOBS = ("indexed", "yuv420, 256", "yuv420, own size")
_BLOCK = 320  # of `Worker.fill`


def measure(run: Run) -> Figures:
    photos = run.photos
    listed = run.listed(_BLOCK if run.smoke else min(2000, len(photos.files)))
    workers, kilobytes = {"files": Worker(listed, run.scratch)}, {"files": photos.nbytes / len(photos.files) / 1e3}
    for name, options in _FORMS.items():
        made = json.loads(run_cli("pack", str(listed), str(_folder(run, name)), "--json", *options))
        workers[name], kilobytes[name] = (
            Worker(_folder(run, name), run.scratch),
            made["total_bytes"] / made["samples"] / 1e3,
        )
    for worker in workers.values():
        worker.fill(0)
    rounds = []
    with no_collection():
        for block in range(1, run.rounds(12) + 1):
            cells = []
            for name, worker in workers.items():
                begun_s = time.perf_counter()
                worker.fill(block)
                cells.append({"form": name, "rows_per_s": _BLOCK / (time.perf_counter() - begun_s)})
            rounds.append(cells)
    jobs = []
    for _ in range(run.rounds(3)):
        cells = []
        for name in _OF_JOBS:
            ops = [RandomResizedCrop(224), RandomHorizontalFlip()]
            with PrepClient(
                Packed(_folder(run, name)), ops, batch_size=64, shuffle=True, fields="dict", workers=run.workers
            ) as client:
                cells.append({"form": name, **rate(client, *((0.5, 0.5) if run.smoke else (2.0, 3.0)))})
        jobs.append(cells)
    return {"kilobytes": kilobytes, "rounds": rounds, "jobs": jobs, "workers": run.workers}


def _folder(run: Run, form: str) -> Path:
    return run.scratch / form.replace(", ", "-").replace(" ", "-")


def sheets(result: Figures) -> list[Sheet]:
    rounds, jobs, kilobytes = result["rounds"], result["jobs"], result["kilobytes"]
    heads = ("form", "rows/s of one worker", f"of a job with {result['workers']}", "kB per sample", "relative to RGB")
    sheet = Sheet("Rows of packed photos", heads)
    for name, size in kilobytes.items():
        rgb = kilobytes.get(f"rgb, {name.partition(', ')[2]}")
        share = "-" if rgb is None else f"{size / rgb:.2f}"
        found = [values(each, "rows_per_s", {"form": name}) for each in (rounds, jobs)]
        sheet.rows.append((name, *(spread(each, ".0f") if each else "-" for each in found), f"{size:.0f}", share))
    pairs = [("yuv420, 256", "indexed"), ("yuv420, own size", "indexed"), ("yuv420, 256", "rgb, 256")]
    sheets = [sheet]
    for who, cells, bound in (("a worker", rounds, None), ("a job", jobs, 1.55)):
        targets = [
            Target(f"{ours} / {theirs}", "rows_per_s", {"form": ours}, {"form": theirs}, None if number else bound)
            for number, (ours, theirs) in enumerate(pairs)
        ]
        sheets.append(target_sheet(f"Ratios of {who}, median over rounds (min-max)", cells, targets))
    return sheets


def remarks(result: Figures) -> list[str]:
    return [
        "FFCV's raw pixels made 1 / 0.84 as many images/s as indexed ones in the comparison with peers: 1.55 times "
        "indexed is 1.3 times FFCV."
    ]


CASE = Case("Packed pixels", measure, sheets, remarks)
