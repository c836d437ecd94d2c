"""The command line, ``python -m bench``: lists the cases, runs them, writes RESULTS.md."""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import report
from bench.harness.case import Case, Figures, Run
from bench.harness.fingerprint import OUT, ROOT, fingerprint
from bench.harness.tables import show

_CASES = ROOT / "bench" / "cases"


def main(arguments: Sequence[str]) -> int:
    """Does what the arguments say; returns the exit status."""
    chosen = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    options = arguments[len(chosen) :]
    if chosen == ["results"]:
        return _results(options)
    parser = argparse.ArgumentParser(
        prog="python -m bench", usage="%(prog)s CASE... [options]\n       %(prog)s results [--figures DIR]",
        description="Runs cases; `%(prog)s CASE --help` says how one measures. `results` writes bench/RESULTS.md.",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list all cases and what each asks")
    if not chosen:
        if not parser.parse_args(options).list:
            parser.error(f"name a case: {', '.join(names())}")
        for name in names():
            print(f"{name:16} {question(name)}")
        return 0
    if unknown := [name for name in chosen if name not in names()]:
        parser.error(f"no such case: {', '.join(unknown)}; there are: {', '.join(names())}")
    if len(chosen) == 1:
        return run(chosen[0], options)
    if any(option.startswith(("--json", "--show")) for option in options):
        parser.error("--json and --show name the file of one case")
    return _run_each(chosen, options)


def names() -> list[str]:
    """All cases."""
    return sorted(path.stem for path in _CASES.glob("[!_]*.py"))


def docstring(name: str) -> str:
    """A case's docstring. The file is read and not imported: a case may import torch."""
    return ast.get_docstring(ast.parse((_CASES / f"{name}.py").read_text())) or ""


def question(name: str) -> str:
    """The first sentence of a case's docstring."""
    return re.split(r"(?<=[.?])\s", " ".join(docstring(name).split()), maxsplit=1)[0]


def load(name: str) -> Case:
    case: Case = importlib.import_module(f"bench.cases.{name}").CASE
    return case


def run(name: str, options: Sequence[str]) -> int:
    """Measures one case, or loads its figures, and prints them."""
    case = load(name)
    chosen = _options(name, case).parse_args(options)
    if chosen.show:
        figures: Figures = json.loads(chosen.show.read_text())
    else:
        figures = _measure(case, chosen)
        Run(chosen, Path()).keep(figures)
        if case.plot:
            chosen.json.with_suffix(".svg").write_text(case.plot(figures))
    print("\n".join(report.heading(figures)))
    show(case.sheets(figures), markdown=chosen.markdown)
    for text in [*case.remarks(figures), *report.warnings(figures)]:
        print(text)
    return 0


def _measure(case: Case, options: argparse.Namespace) -> Figures:
    machine = fingerprint()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as scratch:
        given = Run(options, Path(scratch))
        found = case.measure(given)
    used = {"photos": given.photos.what} if "photos" in vars(given) else {}  # where the case has asked for them
    return {"machine": machine, **used, "took_s": round(time.monotonic() - began_s, 1), **found}


def _run_each(chosen: Sequence[str], options: Sequence[str]) -> int:
    """Each case in a process of its own, so that none finds libraries imported or threads started by another."""
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal's Ctrl-C reaches the child as well
    status = 0
    for name in chosen:
        child = subprocess.Popen([sys.executable, "-m", "bench", name, *options])
        signal.signal(signal.SIGTERM, lambda *_, child=child: child.terminate())
        ended = child.wait()
        if ended == -signal.SIGINT:
            return 128 + signal.SIGINT
        status = max(status, abs(ended))
    return status


def _options(name: str, case: Case) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}", description=docstring(name), allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--data", metavar="DIR", help="a folder of JPEGs (default: $PREPSERVER_BENCH_DATA, "
                        "../shared/data/photos, or synthetic ones)")  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, help="worker processes of a daemon, and processes or threads "
                        "of another loader (default 2)")  # fmt: skip
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    parser.add_argument("--smoke", action="store_true", help="the shortest run that shows that the case works")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    parser.add_argument("--json", type=Path, default=OUT / f"{name}.json", metavar="FILE", help="write figures here")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing, show the figures in this file")
    case.options(parser)
    return parser


def _results(options: Sequence[str]) -> int:
    about = "Writes RESULTS.md and its plots. Sections of cases for which there are no figures stay as they are."
    parser = argparse.ArgumentParser(prog="python -m bench results", description=about)
    parser.add_argument("--figures", type=Path, default=OUT, metavar="DIR", help="where the cases' figures are")
    parser.add_argument("--into", type=Path, default=ROOT / "bench", metavar="DIR", help="where to write")
    chosen = parser.parse_args(options)
    report.write({name: load(name) for name in names()}, chosen.figures, chosen.into)
    return 0
