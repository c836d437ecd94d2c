"""What do two jobs with images of other sizes cost on one stream, and on a stream each?

The jobs of `compare`, one with RandomResizedCrop(224), one with 160. On one stream (equal seeds) a photo is read and
decoded once for both and resized twice; with other seeds each job has a stream of its own. For comparison each of them
runs alone. Three rounds of windows of 4 s.
"""

from __future__ import annotations

from bench.harness.case import Case, Figures, Run
from bench.harness.measure import run_cell
from bench.harness.rounds import ratios, values
from bench.harness.server import running_server
from bench.harness.tables import Sheet, spread

_SIZES = (224, 160)
_CELLS: dict[str, list[tuple[int, int]]] = {
    "224 alone": [(224, 0)],
    "160 alone": [(160, 0)],
    "224 and 160, a stream each": [(224, 0), (160, 1)],
    "224 and 160, one stream": [(224, 0), (160, 0)],
}
"""Name -> (pixels, seed) of each job."""

_EPOCH = 1600
"""The second job of a stream joins where an epoch begins, so epochs are short, and a warm-up is longer than two."""

_APART, _TOGETHER = ({"cell": cell} for cell in list(_CELLS)[2:])


def measure(run: Run) -> Figures:
    listed = run.listed(_EPOCH)
    rounds = []
    for _ in range(run.rounds(3)):
        cells = []
        for cell, jobs in _CELLS.items():
            configs = [run.job("prepserver", listed, size=size, seed=seed) for size, seed in jobs]
            with running_server(run.scratch, run.workers) as server:
                found = run_cell(configs, *((3.0, 1.0) if run.smoke else (4.0, 4.0)), server)
            cells.append({"cell": cell, **found})
        rounds.append(cells)
    return {"workers": run.workers, "rounds": rounds}


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    sheet = Sheet(
        "Side by side",
        ("jobs", "images/s in sum", *(f"of it {size}" for size in _SIZES), "CPU s per 1000", "sharing factor"),
    )
    for cell, jobs in _CELLS.items():
        which, sizes = {"cell": cell}, [size for size, _ in jobs]
        rates = values(rounds, "per_job", which)
        sheet.rows.append((
            cell,
            spread(values(rounds, "images_per_s", which)),
            *(spread([each[sizes.index(size)] for each in rates] if size in sizes else []) for size in _SIZES),
            spread(values(rounds, "cpu_s_per_1000", which), ".2f"),
            spread(values(rounds, "sharing_factor", which), ".2f"),
        ))  # fmt: skip
    saving = Sheet("One stream / a stream each (median over rounds, min-max)", ("ratio", "found"))
    for figure, words in (("cpu_s_per_1000", "CPU s per delivered image"), ("images_per_s", "images/s in sum")):
        saving.rows.append((words, spread(ratios(rounds, figure, _TOGETHER, _APART), ".2f")))
    return [sheet, saving]


CASE = Case("Lanes: two image sizes on one stream", measure, sheets)
