"""prepserver against the loaders that one could take instead: the same photos, the same work, the same cores.

``make bench-peers``, or ``python bench/peers.py [--only NAME,NAME] [--rounds N] [--window-s S] [--smoke]``. Those
that are not installed are left out, with a line that says how to install them (`venvs.py`). See README.md for the
method. Writes ``bench/out/peers.json`` and ``bench/out/peers.svg``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import OUT, disturbed, load, save
from fingerprint import fingerprint, line
from forms import Forms, warm
from jobs import serving
from measure import run_cell
from peer_sheets import chart, remarks, sheets
from photos import Photos, find_photos, write_list
from roster import FORMS, OWN, PEERS
from server import running_server
from tables import show
from venvs import VENVS, Pythons

_BATCH = 64
_MOST_FAILURES = 2  # then a contender is not tried again: each may cost a minute
_WORDS = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often.

    Attributes:
        samples: In an epoch; short enough that each window but the slowest's sees the end of one.
        shared_window_s: For several jobs: one of those contenders hands out 8 batches at a time.
        limit_s: After which a contender counts as hung, besides warm-up and window.
    """

    rounds: int = 3
    warm_s: float = 1.0
    window_s: float = 5.0
    shared_window_s: float = 8.0
    samples: int = 6000
    limit_s: float = 60.0


def main() -> None:
    arguments = _arguments()
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
        cells = _Cells(plan, photos, scratch, arguments.workers, pythons, arguments.cache)
        left_out: dict[str, str] = {}
        versions: dict[str, str] = {}
        taking_part = []
        for key in arguments.only or PEERS:
            if why := cells.why_not(key, versions):
                left_out[key] = f"{PEERS[key].name}: left out: {why}"
                _say(left_out[key])
            else:
                taking_part.append(key)
        prepared_s = time.monotonic()
        for key in taking_part:
            if PEERS[key].module == "prepserver" and PEERS[key].jobs == 1:
                _say(f"warming up: the daemon's listing for {PEERS[key].name}")
                cells.run(key, warm_s=0.0, window_s=0.2)
        rounds: list[list[dict[str, Any]]] = []
        failures: Counter[str] = Counter()
        for number in range(plan.rounds):
            rounds.append([])
            for key in taking_part:
                if failures[key] == _MOST_FAILURES:
                    continue
                try:
                    found = cells.run(key, plan.warm_s, plan.window_s if PEERS[key].jobs == 1 else plan.shared_window_s)
                except (SystemExit, OSError, subprocess.SubprocessError) as error:
                    failures[key] += 1
                    left_out[key] = f"{PEERS[key].name}: failed {failures[key]} time(s); round {number + 1}: {error}"
                    _say(f"{left_out[key]}\n{cells.last_words()}")
                    continue
                rounds[-1].append({"peer": key, **found})
                _say(
                    f"round {number + 1}/{plan.rounds}  {PEERS[key].name:36} {PEERS[key].jobs} job(s): "
                    f"{found['steady_per_s']:.0f} images/s"
                )
    now_s = time.monotonic()
    return {
        "machine": machine, "versions": versions, "photos": photos.what, "workers": arguments.workers,
        "window_s": plan.window_s, "took_s": round(now_s - prepared_s, 1),
        "prepared_s": round(prepared_s - began_s, 1), "left_out": left_out, "rounds": rounds,
    }  # fmt: skip


class _Cells:
    """Runs one contender once."""

    def __init__(self, plan: Plan, photos: Photos, scratch: Path, workers: int, pythons: Pythons, cache: Path) -> None:
        self._plan, self._scratch, self._workers, self._pythons = plan, scratch, workers, pythons
        self._list = scratch / "list.txt"
        write_list(photos, plan.samples, self._list)
        self._forms = Forms(cache, self._list, workers, pythons)
        self._log = scratch / "jobs.log"
        self._photos = len(photos.files)
        self._kb = photos.nbytes / len(photos.files) / 1000

    def why_not(self, key: str, versions: dict[str, str]) -> str:
        """Why a contender cannot take part, or nothing; notes its versions and writes its data if need be."""
        peer = PEERS[key]
        missing, found = self._pythons.look(peer.venv, peer.needs)
        if missing:
            return f"{', '.join(missing)} not installed: python bench/venvs.py {peer.venv}, see bench/README.md"
        versions.update(found)
        if peer.form is not None:
            _say(f"data for {peer.name}")
            try:
                warm(self._forms.ensure(peer.form))
            except (OSError, subprocess.SubprocessError) as error:
                return f"its data could not be written: {error}"
        return ""

    def run(self, key: str, warm_s: float, window_s: float) -> dict[str, Any]:
        peer = PEERS[key]
        config: dict[str, Any] = {
            "contender": peer.module, "list": str(self._list), "batch": _BATCH, "workers": self._workers, "seed": 0,
            "runtime_dir": str(self._scratch / "run"), "python": self._pythons.of(peer.venv), "log": str(self._log),
            **peer.options,
        }  # fmt: skip
        kb_per_image = self._kb
        if peer.form is not None:
            config["data"] = str(self._forms.ensure(peer.form))
            images = self._photos if FORMS[peer.form].once else self._plan.samples
            kb_per_image = self._forms.nbytes(peer.form) / images / 1000
        self._log.write_text("")
        limit_s = self._plan.limit_s + warm_s + window_s
        with contextlib.ExitStack() as stack:
            # A daemon for each cell: an idle one would share torch's pages with the other contenders.
            is_own = peer.module == "prepserver"
            server = stack.enter_context(running_server(self._scratch, self._workers)) if is_own else None
            if peer.serves:
                config["port"] = _free_ports(4)
            service = stack.enter_context(serving(config, limit_s)) if peer.serves else None
            configs = [{**config, "number": number} for number in range(peer.jobs)]
            found = run_cell(configs, warm_s, window_s, server, service=service, limit_s=limit_s)
        return {**found, "kb_per_image": kb_per_image}

    def last_words(self) -> str:
        """The end of what the processes of the last run said on stderr."""
        return "\n".join(f"  {text}" for text in self._log.read_text(errors="replace").splitlines()[-_WORDS:])


def _free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that nobody has now."""
    for first in itertools.count(20_000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("unreachable")


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
