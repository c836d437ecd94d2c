"""Where does a worker's time go, and how much of it is Python?

A worker without a daemon (`bench.harness.worker`), one thread, photos in the page cache and the same photos packed, by
the compiled kernels and by the pure path. A clock is put around each system call and each kernel (decode, resize, flip)
from outside. What lies between them is *Python*: the interpreter, ctypes, numpy, the cache misses of all these, and the
clock's own microsecond. Each figure is the median over the samples of a block, so that an interruption does not count;
the table has the median over 15 blocks of 320. A second pass has clocks around the parts of the path too and says which
Python that is; these clocks make it a little slower.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.server import run_cli
from bench.harness.tables import Sheet, reach, spread
from bench.harness.worker import PYTHON, Place, Worker, no_collection, timed

_TARGET = 0.05
_KINDS = ("files, compiled kernels", "files, pure path", "packed, compiled kernels", "packed, pure path")
_CALLS = {
    "decode": "decode, in C (compiled: and resize, flip)", "resize": "resize and flip, in C",
    "system": "system calls", PYTHON: "Python",
}  # fmt: skip
_PARTS = {
    "read": "finding the sample, reading", "open": "header", "plan": "random parameters",
    "decoding": "around decode", "resizing": "around resize", "whole": "around the one call for all of these",
    PYTHON: "the rest: rows, labels, counters",
}  # fmt: skip


def measure(run: Run) -> Figures:
    import torch

    from prepserver.transform import native

    torch.set_num_threads(1)
    listed, packed = run.listed(max(1600, len(run.photos.files))), run.scratch / "packed"
    run_cli("pack", str(listed), str(packed), "--quiet")
    cells = []
    for kind in _KINDS:
        os.environ["PREPSERVER_NATIVE"] = "0" if "pure" in kind else "1"
        native.forget()
        if "compiled" in kind and native.path().name != "native":
            continue
        cells.append({"kind": kind, "blocks": profile(packed if "packed" in kind else listed, run)})
    return {"cells": cells}


def profile(dataset: Path, run: Run) -> list[dict[str, Any]]:
    """Microseconds per sample in each block: of each kind of call, and of the parts of the path."""
    worker = Worker(dataset, run.scratch)
    worker.fill(0)  # pages, caches, the order's windows
    with no_collection():
        return [
            {**timed(worker, block), "parts": timed(worker, block, _parts())} for block in range(1, run.rounds(15) + 1)
        ]


def _parts() -> list[Place]:
    from prepserver.transform import indexed, rows
    from prepserver.transform.decode import Encoded
    from prepserver.transform.indexed import EncodedScan
    from prepserver.transform.rowmaker import RowMaker
    from prepserver.transform.whole import WholeCrop
    from prepserver.worker import caching

    return [
        (caching, "read_patiently", "read"), (rows, "Encoded", "open"), (rows, "EncodedScan", "open"),
        (RowMaker, "plan", "plan"),
        (Encoded, "clean", "decoding"), (EncodedScan, "clean", "decoding"), (indexed, "cut", "decoding"),
        (RowMaker, "render", "resizing"), (WholeCrop, "make", "whole"),
    ]  # fmt: skip


def sheets(result: Figures) -> list[Sheet]:
    blocks = [cell["blocks"] for cell in result["cells"]]
    columns = ("", *(cell["kind"] for cell in result["cells"]))
    sheet = Sheet("A worker's time, microseconds per sample (median and min-max over blocks)", columns)
    for name, words in _CALLS.items():
        form = ".0f" if name in ("decode", "resize") else ".1f"
        sheet.rows.append((words, *(spread([found[name] for found in each], form) for each in blocks)))
    shares = [[100 * found[PYTHON] / sum(found[name] for name in _CALLS) for found in each] for each in blocks]
    reached = [reach(statistics.median(each), "<", 100 * _TARGET) for each in shares]
    sheet.rows.append(("Python's share, %", *(spread(each, ".1f") for each in shares)))
    sheet.rows.append(("target", *(f"{bound} %" for bound, _ in reached)))
    sheet.rows.append(("reached", *(yes for _, yes in reached)))
    parts = Sheet("Time in Python by part, microseconds per sample, with the clocks' own time", columns)
    for name, words in _PARTS.items():
        parts.rows.append((words, *(spread([found["parts"][name] for found in each], ".1f") for each in blocks)))
    return [sheet, parts]


CASE = Case("Where a worker's time goes", measure, sheets)
