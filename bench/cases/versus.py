"""What does this checkout cost or gain against another commit, or a wheel?

``python -m bench versus --against COMMIT``: the product of the other commit is unpacked and built in a temporary folder
and runs with this interpreter and its packages; what measures is this checkout's both times. ``--against FILE.whl``
takes the product from a wheel, with the kernels inside, and says what a user of it has. Both sides run the same
cells of `peers` in turns, so that both meet the same slow minutes, and rounds begin with one side and the other in
turns. Five rounds of windows of 5 s; every ratio is taken within a round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run, say
from bench.harness.fingerprint import ROOT
from bench.harness.rounds import ratios, values
from bench.harness.server import TREE
from bench.harness.tables import Sheet, reach, spread
from bench.peers.cells import Cells, names_of
from bench.peers.roster import OWN, PEERS
from bench.peers.venvs import VENVS, Pythons

_KEYS = [key for key, peer in PEERS.items() if peer.venv == OWN and peer.module == "prepserver"]
_SAMPLES = 6016
_PRODUCT = ("prepserver", "client", "hatch_build.py")

_FIGURES = {
    "steady_per_s": ("images/s", ".0f", ">=", 0.98),
    "cpu_s_per_1000": ("CPU per image", ".3f", "<=", 1.02),
    "first_batch_s": ("first batch", ".3f", "<=", 1.1),
}
"""Key of a cell: its name and format, and what this checkout may reach relative to the other."""


def measure(run: Run) -> Figures:
    trees = {"this": ROOT, "other": unpack(run.options.against, run.scratch / "other")}
    cells = {}
    for side in trees:
        own = run.scratch / side
        own.mkdir(exist_ok=True)
        cells[side] = Cells(run.photos, _SAMPLES, run.workers, Pythons(VENVS, {}), own / "forms", own)

    keys = run.options.only or _KEYS
    for key in keys:
        for side, tree in trees.items():
            os.environ[TREE] = str(tree)
            if why := cells[side].why_not(key, {}):
                raise SystemExit(f"{PEERS[key].name}: {why}")
            cells[side].run(key, warm_s=0.0, window_s=0.2)  # lists the source
    rounds: list[list[dict[str, Any]]] = []
    window_s = run.options.window_s or (1.0 if run.smoke else 5.0)
    for number in range(run.rounds(5)):
        rounds.append([])
        for key in keys:
            for side in list(trees)[:: -1 if number % 2 else 1]:
                os.environ[TREE] = str(trees[side])
                found = cells[side].run(key, 0.3 if run.smoke else 1.0, window_s)
                rounds[-1].append({"peer": key, "side": side, **found})
                say(f"round {number + 1}  {key:12} {side:5}: {found['steady_per_s']:.0f} images/s")
    return {"workers": run.workers, "other": run.options.against, "rounds": rounds}


def unpack(commit: str, folder: Path) -> Path:
    """Writes the product of a commit into `folder` and builds its kernels there, or that of a wheel, as it is.

    Raises:
        subprocess.CalledProcessError: There is no such commit, or it cannot be built.
    """
    folder.mkdir(parents=True)
    if commit.endswith(".whl"):
        with zipfile.ZipFile(commit) as wheel:
            wheel.extractall(folder)
        (folder / "client").mkdir()
        (folder / "prepclient").rename(folder / "client" / "prepclient")  # as in a checkout
        return folder
    archive = folder.with_suffix(".tar")
    subprocess.run(["git", "-C", str(ROOT), "archive", "-o", str(archive), commit, *_PRODUCT], check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    subprocess.run([sys.executable, "hatch_build.py"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    sheet = Sheet(
        f"This checkout / {result['other']}, in {len(rounds)} rounds",
        ("", "figure", "this", "other", "this / other", "target", "reached"),
    )
    for key in dict.fromkeys(cell["peer"] for cell in rounds[0]):
        this, other = ({"peer": key, "side": side} for side in ("this", "other"))
        for figure, (words, form, sign, bound) in _FIGURES.items():
            relative = ratios(rounds, figure, this, other)
            sheet.rows.append((
                f"{PEERS[key].name}, {PEERS[key].jobs} job(s)", words, spread(values(rounds, figure, this), form),
                spread(values(rounds, figure, other), form), spread(relative, ".3f"),
                *reach(statistics.median(relative), sign, bound),
            ))  # fmt: skip
    return [sheet]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", default="HEAD", metavar="COMMIT", help="or a wheel (default HEAD)")
    parser.add_argument("--only", type=names_of(_KEYS), metavar="NAME,...", help=f"of {', '.join(_KEYS)}")
    parser.add_argument("--window-s", type=float, help="default 5")


CASE = Case("", measure, sheets, options=options)
