"""prepserver against the loaders that one could take instead: the same photos, the same work, the same cores.

``make bench-peers``, or ``python bench/peers.py [--only NAME,NAME] [--rounds N] [--window-s S] [--smoke]``. Those
that are not installed are left out, with a line that says how to install them (`venvs.py`). See README.md for the
method. Writes ``bench/out/peers.json`` and ``bench/out/peers.svg``.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cells import Cells
from compare import OUT, disturbed, load, save
from fingerprint import fingerprint, line
from peer_sheets import chart, remarks, sheets
from photos import find_photos
from roster import OWN, PEERS
from tables import show
from venvs import VENVS, Pythons

_MOST_FAILURES = 2  # then a contender is not tried again: each may cost a minute


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often.

    Attributes:
        samples: In an epoch: whole batches, and so few that each window but the slowest's sees an epoch's end.
        shared_window_s: For several jobs: one of those contenders hands out 8 batches at a time.
    """

    rounds: int = 3
    warm_s: float = 1.0
    window_s: float = 5.0
    shared_window_s: float = 8.0
    samples: int = 6016


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # daemons and jobs are ended then, too
    plan = Plan(
        rounds=arguments.rounds or (1 if arguments.smoke else 3),
        warm_s=0.3 if arguments.smoke else 1.0,
        window_s=arguments.window_s or (1.0 if arguments.smoke else 5.0),
        shared_window_s=arguments.window_s or (1.0 if arguments.smoke else 8.0),
    )
    if arguments.show:
        result = load(arguments.show)
    else:
        result = measure(plan, arguments)
        save(result, arguments.json)
        arguments.json.with_suffix(".svg").write_text(chart(result))
    print(line(result["machine"]), f"{result['photos']}; {result['workers']} workers.", sep="\n")
    show(sheets(result), markdown=arguments.markdown)
    for text in [*remarks(result), *disturbed(result)]:
        print(text)


def measure(plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds; every contender once in each, so that a slow minute of the machine meets all of them."""
    machine = fingerprint()
    began_s = time.monotonic()
    pythons = Pythons(arguments.venvs, dict(arguments.python))
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        photos = find_photos(arguments.data, scratch)
        cells = Cells(photos, plan.samples, arguments.workers, pythons, arguments.cache, scratch)
        taking_part, left_out, versions = _taking_part(cells, arguments.only or list(PEERS))
        prepared_s = time.monotonic()
        rounds = _rounds(cells, plan, taking_part, left_out)
    return {
        "machine": machine, "versions": versions, "photos": photos.what, "workers": arguments.workers,
        "window_s": plan.window_s, "prepared_s": round(prepared_s - began_s, 1),
        "took_s": round(time.monotonic() - prepared_s, 1), "left_out": left_out, "rounds": rounds,
    }  # fmt: skip


def _taking_part(cells: Cells, wanted: list[str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """(who can take part, why the others cannot, versions of packages); afterwards their data are there."""
    taking_part: list[str] = []
    left_out: dict[str, str] = {}
    versions: dict[str, str] = {}
    for key in wanted:
        if PEERS[key].form:
            _say(f"data for {PEERS[key].name}")
        if why := cells.why_not(key, versions):
            left_out[key] = f"{PEERS[key].name}: left out: {why}"
            _say(left_out[key])
        else:
            taking_part.append(key)
    return taking_part, left_out, versions


def _rounds(cells: Cells, plan: Plan, keys: list[str], left_out: dict[str, str]) -> list[list[dict[str, Any]]]:
    """The cells of all rounds; notes who failed in `left_out`."""
    for key in keys:
        if PEERS[key].module == "prepserver" and PEERS[key].jobs == 1:
            _say(f"warming up: the daemon's listing for {PEERS[key].name}")
            cells.run(key, warm_s=0.0, window_s=0.2)
    rounds: list[list[dict[str, Any]]] = []
    failures: Counter[str] = Counter()
    for number in range(plan.rounds):
        rounds.append([])
        for key in [key for key in keys if failures[key] < _MOST_FAILURES]:
            peer = PEERS[key]
            try:
                found = cells.run(key, plan.warm_s, plan.window_s if peer.jobs == 1 else plan.shared_window_s)
            except (SystemExit, OSError, subprocess.SubprocessError) as error:
                failures[key] += 1
                left_out[key] = f"{peer.name}: failed {failures[key]} time(s), last in round {number + 1}: {error}"
                _say(f"{left_out[key]}\n{cells.last_words()}")
                continue
            rounds[-1].append({"peer": key, **found})
            _say(
                f"round {number + 1}/{plan.rounds}  {peer.name:36} {peer.jobs} job(s): "
                f"{found['steady_per_s']:.0f} images/s"
            )
    return rounds


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(PEERS)}")
    return names


def _python(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    known = sorted({peer.venv for peer in PEERS.values()} - {OWN})
    if name not in known or not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{text}: needs NAME=PATH, an interpreter for one of {', '.join(known)}")
    return name, path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="prepserver against its peers.")
    parser.add_argument("--only", type=_names, metavar="NAME,...", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, help="default 3")
    parser.add_argument("--window-s", type=float, help="default 5, and 8 for several jobs")
    parser.add_argument("--workers", type=int, default=2, help="processes or threads of each loader (default 2)")
    parser.add_argument("--data", help="a folder of JPEGs (default: $PREPSERVER_BENCH_DATA, ../shared/data/photos, or "
                        "synthetic)")  # fmt: skip
    parser.add_argument("--venvs", type=Path, default=VENVS, help="where the contenders' venvs are")
    parser.add_argument("--python", type=_python, action="append", default=[], metavar="NAME=PATH",
                        help="another interpreter for a venv; again for more")  # fmt: skip
    parser.add_argument("--cache", type=Path, default=OUT / "forms", help="for the data in the contenders' forms")
    parser.add_argument("--smoke", action="store_true", help="one round of a second each: does it run")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    parser.add_argument("--json", type=Path, default=OUT / "peers.json", help="where the figures go; a plot beside it")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing, show the figures of this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
