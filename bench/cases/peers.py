"""How fast are other data loaders?

Each loader runs at the fastest settings that its documentation recommends: one job with 2 workers (or threads), and 4
jobs at the same time. docs/benchmarks.md lists the contenders, their settings, and how to install them; those that are
not installed are left out, with a line that says how to install them. Everybody does the work of `compare` on the same
photos, or on the same photos written before in the contender's own form.

A cell is measured as in `compare`. An epoch has 6016 samples, 94 batches; the window is 5 s for one job and 8 s for
four. Three rounds; in each all contenders run in the same order.

- *images/s*: in the window, without the waits between epochs (from the last batch of one to the first of the next),
  because with 1.3 million samples they would hardly count. What a loader prepares in such a wait counts in full: this
  is worth up to 1 % to those that stop between epochs.
- */ prepserver*: divided, within a round, by prepserver's images/s on plain files with as many jobs.
- *imports*: from the start of the process until it is ready; *first batch*: from there. FFCV compiles itself then.
- *gap*: the median wait for the first batch of an epoch, less the median of all others, over the whole life of the
  job. Loaders that repeat by themselves are cut every 6016 samples.
- *next()*: all waits in the window. Every loader here is slower than its consumer, so p50 is about the time that it
  takes to make a batch.
- *CPU s per 1000* and *PSS*: of the whole process tree, services included. FFCV maps its file, which counts as its
  memory. A second table shows prepserver's memory in parts: a job's own part is mostly torch.
- *kB per image*: the bytes on disk per image; for FFCV without its padding.

Below the tables, a line for each column names the contenders that are ahead of prepserver, and whether they antialias;
others name those that were left out, and why. `bench/out/peers.svg` shows the bars.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run, say
from bench.harness.fingerprint import OUT
from bench.peers.cells import Cells, names_of
from bench.peers.roster import OWN, PEERS
from bench.peers.sheets import chart, remarks, sheets
from bench.peers.venvs import VENVS, Pythons

_SAMPLES = 6016  # whole batches, and so few that each window but the slowest's sees the end of an epoch
_MOST_FAILURES = 2  # then a contender is not tried again: each failure may cost a minute
_SHARED_WINDOW_S = 8.0  # for several jobs: one of those contenders hands out 8 batches at a time


def measure(run: Run) -> Figures:
    options = run.options
    pythons = Pythons(options.venvs, dict(options.python))
    cells = Cells(run.photos, _SAMPLES, run.workers, pythons, options.cache, run.scratch)
    taking_part, left_out, versions = _taking_part(cells, options.only or list(PEERS))
    prepared_s = time.monotonic()
    rounds = _rounds(cells, run, taking_part, left_out)
    return {
        "workers": run.workers, "versions": versions, "took_s": round(time.monotonic() - prepared_s, 1),
        "left_out": left_out, "rounds": rounds,
    }  # fmt: skip


def _taking_part(cells: Cells, wanted: Collection[str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """The contenders that can run, why the others cannot, and the versions of packages; writes their data."""
    taking_part: list[str] = []
    left_out: dict[str, str] = {}
    versions: dict[str, str] = {}
    for key in wanted:
        if PEERS[key].form:
            say(f"data for {PEERS[key].name}")
        if why := cells.why_not(key, versions):
            left_out[key] = f"{PEERS[key].name}: left out: {why}"
            say(left_out[key])
        else:
            taking_part.append(key)
    return taking_part, left_out, versions


def _rounds(cells: Cells, run: Run, keys: list[str], left_out: dict[str, str]) -> list[list[dict[str, Any]]]:
    """The cells of all rounds; notes failed contenders in `left_out`."""
    for key in keys:
        if PEERS[key].module == "prepserver" and PEERS[key].jobs == 1:
            say(f"warming up: the daemon's listing for {PEERS[key].name}")
            cells.run(key, warm_s=0.0, window_s=0.2)
    rounds: list[list[dict[str, Any]]] = []
    failures: Counter[str] = Counter()
    for number in range(1, run.rounds(3) + 1):
        rounds.append([])
        for key in [key for key in keys if failures[key] < _MOST_FAILURES]:
            peer = PEERS[key]
            window_s = run.options.window_s or (1.0 if run.smoke else 5.0 if peer.jobs == 1 else _SHARED_WINDOW_S)
            try:
                found = cells.run(key, 0.3 if run.smoke else 1.0, window_s)
            except (SystemExit, OSError, subprocess.SubprocessError) as error:
                failures[key] += 1
                left_out[key] = f"{peer.name}: failed {failures[key]} time(s), last in round {number}: {error}"
                say(f"{left_out[key]}\n{cells.last_lines()}")
                continue
            rounds[-1].append({"peer": key, **found})
            say(f"round {number}  {peer.name:36} {peer.jobs} job(s): {found['steady_per_s']:.0f} images/s")
    return rounds


def _python(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    known = sorted({peer.venv for peer in PEERS.values()} - {OWN})
    if name not in known or not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{text}: needs NAME=PATH, an interpreter for one of {', '.join(known)}")
    return name, path


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", type=names_of(PEERS), metavar="NAME,...", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--window-s", type=float, help="default 5, and 8 for several jobs")
    parser.add_argument("--venvs", type=Path, default=VENVS, metavar="DIR", help="where the contenders' venvs are")
    parser.add_argument("--python", type=_python, action="append", default=[], metavar="NAME=PATH",
                        help="another interpreter for a venv; may be repeated")  # fmt: skip
    parser.add_argument("--cache", type=Path, default=OUT / "forms", metavar="DIR",
                        help="for the data in the contenders' forms")  # fmt: skip


CASE = Case("Against other data loaders", measure, sheets, remarks, chart, options)
