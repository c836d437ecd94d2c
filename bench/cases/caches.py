"""What does a cache hit save, and how many copies do four jobs hold?

*Hits*: a worker without a daemon (`bench.harness.worker`), one thread, fills 32 rows at a time of 400 photos: from
files in the page cache, and with each kind of cache, which all photos were put into before. In each of fifteen rounds
all variants fill the same positions in turns, and a ratio is taken within a round.

*Copies*: a daemon; one job reads two epochs with a decoded cache, then four at once, two of them with another crop.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.server import Server, running_server
from bench.harness.tables import Sheet, reach, spread
from bench.harness.worker import Worker, no_collection

_HIT = 8.0
_CHUNK = 32
_PHOTOS = 400
_NONE, _ENCODED, _DECODED, _ON_DISK = "no cache", "encoded, memory", "decoded, memory", "decoded, on disk"


def measure(run: Run) -> Figures:
    import torch

    torch.set_num_threads(1)
    samples = 64 if run.smoke else _PHOTOS
    cells = []
    for number, (words, ops) in enumerate(_pipelines().items()):
        cells += _hits(run, f"{number}", words, ops, samples)
    with running_server(run.scratch, run.workers) as server:
        copies = [_held(server, run, jobs, samples) for jobs in (1, 4)]
    return {"photos": run.photos.what, "cells": cells, "copies": copies}


def _pipelines() -> dict[str, list[Any]]:
    from prepserver.pipeline.ops import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

    return {
        "Resize(256), RandomCrop(224)": [Resize(256), RandomCrop(224)],
        "Resize(256), RandomCrop(224), flip": [Resize(256), RandomCrop(224), RandomHorizontalFlip()],
        "RandomResizedCrop(224), flip": [RandomResizedCrop(224), RandomHorizontalFlip()],
    }


def _hits(run: Run, name: str, words: str, ops: list[Any], samples: int) -> list[dict[str, Any]]:
    workers = {way: Worker(run.listed(samples), run.scratch, ops) for way in (_NONE, _ENCODED, _DECODED, _ON_DISK)}
    workers[_ENCODED].cached("encoded")
    workers[_DECODED].cached("decoded")
    workers[_ON_DISK].cached("decoded", run.scratch / f"{name}.cache")
    found: dict[str, list[float]] = {way: [] for way in workers}
    for worker in workers.values():
        for position in range(0, samples, _CHUNK):
            worker.fill_rows(position, _CHUNK)
    with no_collection():
        for number, (way, worker) in itertools.product(range(run.rounds(15)), workers.items()):
            began_s = time.perf_counter()
            worker.fill_rows(samples + _CHUNK * number, _CHUNK)
            found[way].append(_CHUNK / (time.perf_counter() - began_s))
    return [{"pipeline": words, "way": way, "per_s": per_s} for way, per_s in found.items()]


def _held(server: Server, run: Run, jobs: int, samples: int) -> dict[str, Any]:
    """What the daemon's only cache holds after two epochs of so many jobs."""
    from prepclient import RandomCrop, Resize

    def job(number: int) -> None:
        ops = [Resize(256), RandomCrop(224 - 32 * (number % 2))]
        with server.client(run.listed(samples), ops, cache="decoded", seed=number // 2, batch_size=16) as client:
            for _ in range(2):
                for _batch in client:
                    pass

    threads = [threading.Thread(target=job, args=(number,)) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (cache,) = server.status()["caches"]
    return {"jobs": jobs, "rows": cache["rows"], "bytes": cache["bytes"]}


def sheets(result: Figures) -> list[Sheet]:
    figures = {(cell["pipeline"], cell["way"]): cell["per_s"] for cell in result["cells"]}
    pipelines = list(dict.fromkeys(pipeline for pipeline, _ in figures))
    rates = Sheet("Images/s of one worker (median and min-max over rounds)", ("", *pipelines))
    times = Sheet("Times as fast as without a cache, by round", ("", *pipelines, "target of the first", "reached"))
    for way in (_NONE, _ENCODED, _DECODED, _ON_DISK):
        rates.rows.append((way, *(spread(figures[pipeline, way]) for pipeline in pipelines)))
        if way == _NONE:
            continue
        pairs = [(figures[pipeline, way], figures[pipeline, _NONE]) for pipeline in pipelines]
        ratios = [[hit / miss for hit, miss in zip(*pair, strict=True)] for pair in pairs]
        target = reach(statistics.median(ratios[0]), ">=", _HIT) if way == _DECODED else ("", "")
        times.rows.append((way, *(spread(each, ".1f") for each in ratios), *target))
    copies = Sheet("One decoded cache after two epochs", ("jobs", "samples in it", "MB", "copies"))
    alone = result["copies"][0]["bytes"]
    for each in result["copies"]:
        megabytes, share = f"{each['bytes'] / 1e6:.0f}", f"{each['bytes'] / alone:.2f}"
        copies.rows.append((str(each["jobs"]), str(each["rows"]), megabytes, share))
    return [rates, times, copies]


CASE = Case("Caches", measure, sheets, remarks=lambda figures: [figures["photos"]])
