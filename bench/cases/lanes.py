"""Two jobs with images of other sizes: on one stream, where a photo is read and decoded once, and each on its own.

``python bench/lanes.py [--data DIR] [--smoke] [--markdown]``. Writes ``bench/out/lanes.json``.

Jobs are those of `compare.py`, one with 224 pixels and one with 160. On one stream they have the same seed; on
streams of their own each has another. For comparison each of them alone.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import command
from compare import disturbed
from fingerprint import fingerprint
from measure import run_cell
from photos import find_photos, write_list
from server import running_server
from tables import Sheet, spread

_SIZES = (224, 160)
_CELLS: dict[str, list[tuple[int, int]]] = {
    "224 alone": [(224, 0)],
    "160 alone": [(160, 0)],
    "224 and 160, a stream each": [(224, 0), (160, 1)],
    "224 and 160, one stream": [(224, 0), (160, 0)],
}
"""Name -> (pixels, seed) of each job."""

_EPOCH = 1600
"""The second job of a stream joins where an epoch begins: short ones, and a warm-up that is longer than two."""

_APART, _TOGETHER = list(_CELLS)[2:]


def main() -> None:
    command.run(
        "lanes", "Lanes of one stream.",
        lambda arguments: measure(
            arguments.data, arguments.workers, *((1, 3.0, 1.0) if arguments.smoke else (3, 4.0, 4.0))
        ),
        sheets, remarks=disturbed,
    )  # fmt: skip


def measure(data: str | None, workers: int, rounds: int, warm_s: float, window_s: float) -> dict[str, Any]:
    machine = fingerprint()
    found: list[list[dict[str, Any]]] = []
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        listed = scratch / "list.txt"
        photos = find_photos(data, scratch)
        write_list(photos, _EPOCH, listed)
        for _ in range(rounds):
            cells = []
            for cell, jobs in _CELLS.items():
                configs = [
                    {
                        "contender": "prepserver", "list": str(listed), "batch": 64, "workers": workers, "seed": seed,
                        "size": size, "runtime_dir": str(scratch / "run"),
                    }
                    for size, seed in jobs
                ]  # fmt: skip
                with running_server(scratch, workers) as server:
                    cells.append({"cell": cell, **run_cell(configs, warm_s, window_s, server)})
            found.append(cells)
    took_s = round(time.monotonic() - began_s, 1)
    return {"machine": machine, "photos": photos.what, "workers": workers, "took_s": took_s, "rounds": found}


def sheets(result: dict[str, Any]) -> list[Sheet]:
    rounds = [{c["cell"]: c for c in cells} for cells in result["rounds"]]
    main_sheet = Sheet(
        "Side by side",
        ("jobs", "images/s in sum", *(f"of it {size}" for size in _SIZES), "CPU s per 1000", "sharing factor"),
    )
    for cell, jobs in _CELLS.items():
        cells = [r[cell] for r in rounds]
        sizes = [size for size, _ in jobs]
        main_sheet.rows.append((
            cell,
            spread([c["images_per_s"] for c in cells]),
            *(spread([c["per_job"][sizes.index(s)] for c in cells] if s in sizes else []) for s in _SIZES),
            spread([c["cpu_s_per_1000"] for c in cells], ".2f"),
            spread([c["sharing_factor"] for c in cells], ".2f"),
        ))  # fmt: skip
    saving = Sheet("One stream / a stream each (median of the rounds' own, min-max)", ("ratio", "found"))
    for figure, words in (("cpu_s_per_1000", "CPU s per delivered image"), ("images_per_s", "images/s in sum")):
        values = [r[_TOGETHER][figure] / r[_APART][figure] for r in rounds]
        saving.rows.append((words, spread(values, ".2f")))
    return [main_sheet, saving]


if __name__ == "__main__":
    main()
