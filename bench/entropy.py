"""Huffman decoding by libjpeg-turbo and by our own decoder: what a worker's decoding takes with the one and the other.

``python bench/entropy.py [--data DIR] [--smoke] [--markdown]``. Writes ``bench/out/entropy.json``.

One process, one thread, no daemon: the worker of worker_profile.py on photos in the page cache, in turns on the same
samples. README.md has the method.
"""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from photos import find_photos, write_list
from server import run_cli
from tables import Sheet, spread
from worker_profile import PYTHON, Worker, timed

_WAYS = (("libjpeg-turbo's", False), ("our own", True))


def main() -> None:
    command.run(
        "entropy", "Huffman decoding by libjpeg-turbo and by our own decoder.",
        lambda arguments: measure(arguments.data, 1 if arguments.smoke else 15),
        sheets, takes_workers=False,
    )  # fmt: skip


def measure(data: str | None, blocks: int) -> dict[str, Any]:
    import torch

    from prepserver.transform import native

    machine = fingerprint()
    compiled = native.kernels()
    if compiled is None or not compiled.own_entropy:
        raise SystemExit(f"nothing to compare: {native.path().reason}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        photos = find_photos(data, scratch)
        listed, packed = scratch / "list.txt", scratch / "packed"
        write_list(photos, max(1600, len(photos.files)), listed)
        run_cli("pack", str(listed), str(packed), "--quiet")
        cells = []
        for form, dataset in (("files", listed), ("packed", packed)):
            worker = Worker(dataset, scratch)
            worker.fill(0)
            gc.collect()
            gc.disable()  # as in a worker
            rounds: list[dict[str, Any]] = []
            for block in range(1, blocks + 1):
                found = {}
                for words, own in _WAYS:
                    compiled.use_own_entropy(own)
                    found[words] = timed(worker, block)
                rounds.append(found)
            gc.enable()
            cells.append({"form": form, "rounds": rounds})
    return {"machine": machine, "photos": photos.what, "cells": cells}


def sheets(result: dict[str, Any]) -> list[Sheet]:
    columns = ("Huffman decoding is", *(words for words, _ in _WAYS), "ratio")
    sheet = Sheet("A worker's time by who decodes Huffman codes, microseconds a sample", columns)
    parts = {"decode, resize and flip": ("decode", "resize"), "all": (PYTHON, "system", "decode", "resize")}
    for cell in result["cells"]:
        for words, names in parts.items():
            theirs, ours = ([sum(found[way][name] for name in names) for found in cell["rounds"]] for way, _ in _WAYS)
            ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
            sheet.rows.append((f"{cell['form']}: {words}", spread(theirs), spread(ours), spread(ratios, ".2f")))
    return [sheet]


if __name__ == "__main__":
    main()
