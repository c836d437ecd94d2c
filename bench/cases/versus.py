"""This checkout against another commit: the same cells, in turns, so that both meet the same slow minutes.

``python bench/versus.py COMMIT [--only NAME,NAME] [--rounds N] [--window-s S] [--smoke]``. The other commit is
unpacked and built in a temporary folder and runs with this interpreter and its packages. Every figure is a ratio taken
within a round. Writes ``bench/out/versus.json``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from cells import Cells
from compare import OUT, load, save
from fingerprint import ROOT, fingerprint, line
from photos import find_photos
from roster import OWN, PEERS
from server import TREE
from tables import Sheet, show, spread
from venvs import VENVS, Pythons

_KEYS = [key for key, peer in PEERS.items() if peer.venv == OWN and peer.module == "prepserver"]
_SAMPLES = 6016

_FIGURES = {
    "steady_per_s": ("images/s", ">= 0.98", lambda ratio: ratio >= 0.98),
    "cpu_s_per_1000": ("CPU per image", "<= 1.02", lambda ratio: ratio <= 1.02),
    "first_batch_s": ("first batch", "<= 1.1", lambda ratio: ratio <= 1.1),
}
"""Key of a cell: what it is, and what this checkout may cost of the other's figure."""


def main() -> None:
    arguments = _arguments()
    if arguments.show:
        result = load(arguments.show)
    else:
        result = measure(arguments)
        save(result, arguments.json)
    print(line(result["machine"]), f"{result['photos']}; {result['workers']} workers.", sep="\n")
    show(sheets(result), markdown=arguments.markdown)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    machine = fingerprint()
    began_s = time.monotonic()
    window_s = arguments.window_s or (1.0 if arguments.smoke else 5.0)
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        os.chdir(scratch)  # `python -m` looks there first, so no checkout may be the working directory
        other = unpack(arguments.commit, scratch / "other")
        photos = find_photos(arguments.data, scratch)
        sides = {"this": ROOT, "other": other}
        cells = {}
        for side in sides:
            own = scratch / side
            own.mkdir(exist_ok=True)
            cells[side] = Cells(photos, _SAMPLES, arguments.workers, Pythons(VENVS, {}), own / "forms", own)
        rounds: list[dict[str, dict[str, Any]]] = []
        for key in arguments.only or _KEYS:
            for side, tree in sides.items():
                os.environ[TREE] = str(tree)
                if why := cells[side].why_not(key, {}):
                    raise SystemExit(f"{PEERS[key].name}: {why}")
                cells[side].run(key, warm_s=0.0, window_s=0.2)  # lists the source
        for number in range(arguments.rounds or (1 if arguments.smoke else 5)):
            rounds.append({})
            for key in arguments.only or _KEYS:
                found = {}
                for side in list(sides)[:: -1 if number % 2 else 1]:
                    os.environ[TREE] = str(sides[side])
                    found[side] = cells[side].run(key, 0.3 if arguments.smoke else 1.0, window_s)
                rounds[-1][key] = found
                rates = {side: round(figures["steady_per_s"]) for side, figures in found.items()}
                print(f"round {number + 1}  {key:12} {rates} images/s", file=sys.stderr, flush=True)
    return {
        "machine": machine, "photos": photos.what, "workers": arguments.workers, "other": arguments.commit,
        "took_s": round(time.monotonic() - began_s, 1), "rounds": rounds,
    }  # fmt: skip


def unpack(commit: str, folder: Path) -> Path:
    """Writes the files of a commit below `folder` and builds its kernels there.

    Raises:
        subprocess.CalledProcessError: There is no such commit, or it cannot be built.
    """
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    subprocess.run(["git", "-C", str(ROOT), "archive", "-o", str(archive), commit], check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    subprocess.run([sys.executable, "hatch_build.py"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder


def sheets(result: dict[str, Any]) -> list[Sheet]:
    sheet = Sheet(
        f"This checkout / {result['other']}, in {len(result['rounds'])} rounds",
        ("", "figure", "this", "other", "this / other", "to reach", "reached"),
    )
    for key in result["rounds"][0]:
        for figure, (words, bound, holds) in _FIGURES.items():
            these, others = ([each[key][side][figure] for each in result["rounds"]] for side in ("this", "other"))
            ratios = [mine / theirs for mine, theirs in zip(these, others, strict=True)]
            form = ".0f" if figure == "steady_per_s" else ".3f"
            sheet.rows.append((
                f"{PEERS[key].name}, {PEERS[key].jobs} job(s)", words, spread(these, form), spread(others, form),
                spread(ratios, ".3f"), bound, "yes" if holds(statistics.median(ratios)) else "no",
            ))  # fmt: skip
    return [sheet]


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in _KEYS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(_KEYS)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="This checkout against another commit.")
    parser.add_argument("commit", help="what git knows it by")
    parser.add_argument("--only", type=_names, metavar="NAME,...", help=f"of {', '.join(_KEYS)}")
    parser.add_argument("--rounds", type=int, help="default 5")
    parser.add_argument("--window-s", type=float, help="default 5")
    parser.add_argument("--workers", type=int, default=2, help="of each daemon (default 2)")
    parser.add_argument("--data", help="a folder of JPEGs (default: $PREPSERVER_BENCH_DATA, ../shared/data/photos, or "
                        "synthetic)")  # fmt: skip
    parser.add_argument("--smoke", action="store_true", help="one round of a second each: does it run")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    parser.add_argument("--json", type=Path, default=OUT / "versus.json", help="where the figures go")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing, show the figures of this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
