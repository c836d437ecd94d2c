"""Does the path to a GPU work on this machine, how fast is it, and what do training jobs gain?

One command for a machine with a GPU; about eight minutes (``--budget-s``), in this order:

1. the device, its driver and memory;
2. the tests of ``tests/gpu``: rings that wrap, kills, forks, 40 attachments, capture while memory is locked;
3. the checks of `bench.harness.gpu_checks`, each in a process of its own: page-locked shared memory against torch's
   pinned memory, two processes at once, copies beside a training step, read-only mappings, ``ulimit -l``, NVML, ops on
   batches;
4. the case `training` with the time that is left: ResNet-50 and ResNet-18 in one to four jobs, fed by prepserver, by
   DataLoaders, and by rows that are on the GPU.

It ends with a line for each target, and whether it is reached. What fails, crashes or hangs says so, and the rest goes
on; figures are written as they come. Without a CUDA device the case says so and exits with 0. On a machine that has
only torch with CUDA, ``python tests/gpu/machine.py`` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from bench.cases import training
from bench.harness.case import Case, Figures, Run, say
from bench.harness.fingerprint import ROOT
from bench.harness.rounds import target_sheet
from bench.harness.tables import Sheet, reach

try:
    from bench.harness.gpu_checks import CHECKS, Facts
except ImportError as error:
    sys.exit(f"{error}. On a machine that has only torch: python tests/gpu/machine.py")

_TESTS_S = 150.0
_CHECK_S = 150.0  # the first one may have to read CUDA's libraries from a slow disk
_LEAST_S = 45.0  # for `training`: fewer seconds measure nothing

_BOUNDS = [
    ("copies of 37 MiB: page-locked / torch's pinned memory", "memfd, locked", "locked_37_MiB_by_torch_pinned",
     ">=", 0.97),
    ("copies of 256 MiB: page-locked / torch's pinned memory", "memfd, locked", "locked_256_MiB_by_torch_pinned",
     ">=", 0.97),
    ("copies of two processes at once / of one", "memfd, locked", "two_by_one", ">=", 0.95),
    ("part of the copies hidden behind a training step, %", "copies beside a training step", "hidden_percent",
     ">=", 95.0),
    ("a training step with a copy beside it / alone", "copies beside a training step", "step_with_a_copy_by_step",
     "<=", 1.01),
    ("a killed process's memory is right when used again", "killed in mid-copy", "right_when_used_again", ">=", 1.0),
    ("MixUp and CutMix, fused, as a share of a training step, %", "ops on batches",
     "mixed_fused_share_of_step_percent", "<", 3.0),
]  # fmt: skip
"""(text, check, fact, sign, bound)."""

cuda: Any = torch.cuda  # typed in part only


def device() -> Facts:
    properties = cuda.get_device_properties(cuda.current_device())
    return {
        "gpu": properties.name, "gpus": cuda.device_count(), "gpu_memory_mib": properties.total_memory >> 20,
        "torch": torch.__version__, "cuda": torch.version.cuda, "cores": len(os.sched_getaffinity(0)),
    }  # fmt: skip


def measure(run: Run) -> Figures:
    if not cuda.is_available():
        print("no CUDA device: nothing to measure here")
        raise SystemExit(0)
    until_s = time.monotonic() + run.options.budget_s
    found: Figures = {"device": device()}

    def keep(name: str, look: Callable[[], Facts]) -> None:
        began_s = time.monotonic()
        facts = look()
        found[name] = facts | {"took_s": round(time.monotonic() - began_s, 1)}
        say(f"{name}: {json.dumps(found[name])}")
        run.keep({"found": found})

    only = run.options.only or ["tests", *(str(number) for number, _ in enumerate(CHECKS, 1)), "training"]
    if "tests" in only:
        keep("tests", lambda: tests(run.scratch / "tests.xml"))
    for number, (name, _) in enumerate(CHECKS, 1):
        if str(number) in only:
            command = [sys.executable, "-m", "bench.harness.gpu_checks", "check", str(number)]
            keep(name, partial(answer, command))
    if "training" in only:
        left_s = until_s - time.monotonic()
        keep("training", lambda: trained(run, left_s) if left_s > _LEAST_S else {"failed": "no time was left"})
    return {"found": found}


def tests(report: Path) -> Facts:
    """How many tests of ``tests/gpu`` passed, failed and were skipped."""
    command = [
        *(sys.executable, "-m", "pytest", "tests/gpu", "-v", "-p", "no:cacheprovider", "--timeout", "90"),
        *("-k", "not fake"),  # CI runs those on the fake device
        *("--durations", "5", "--junitxml", str(report), "--session-timeout", f"{_TESTS_S:g}"),
    ]
    # pytest ends after the test in which the time is up, and still tells what failed.
    began_s = time.monotonic()
    code, _ = output_of(command, _TESTS_S + _CHECK_S, stdout=sys.stderr)
    if code is None or not report.exists():
        why = f"pytest was not done within {_TESTS_S + _CHECK_S:g} s" if code is None else f"pytest ended with {code}"
        return {"failed": why}
    suites = ElementTree.parse(report).iter("testsuite")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in suites:
        counts = {name: count + int(suite.get(name, 0)) for name, count in counts.items()}
    failed = [case.get("name") for case in ElementTree.parse(report).iter("testcase") if list(case.iter("failure"))]
    why = f"pytest ended with {code}" if code not in (0, 1) else ""
    if time.monotonic() - began_s >= _TESTS_S:
        why = "the time was up: some tests may not have run"
    return counts | {"failed_tests": failed} | ({"failed": why} if why else {})


def answer(command: Sequence[str], patience_s: float = _CHECK_S) -> Facts:
    """The last line that a process writes, which is JSON; or why there is none. The process and its children end."""
    code, said = output_of(command, patience_s)
    if code is None:
        return {"failed": f"no answer within {patience_s:g} s"}
    if code:
        return {"failed": f"the process ended with {code}; its stderr says more"}
    try:
        facts: Facts = json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        return {"failed": f"the process ended well and answered {said[-200:]!r}"}
    return facts


def trained(run: Run, left_s: float) -> Figures:
    """The figures of the case `training`, which are beside the others as they come."""
    into = run.options.json.resolve().with_suffix(".training.json")
    into.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench", "training", "--json", str(into), "--budget-s", f"{left_s:.0f}"]
    if run.options.data:
        command += ["--data", str(Path(run.options.data).resolve())]
    code, _ = output_of(command, left_s + 2 * training.LIMIT_S, stdout=sys.stderr)
    if into.exists():  # it is written as cells come
        figures: Figures = json.loads(into.read_text())
        return figures
    return {"failed": f"the process ended with {code}; its stderr says more"}


def output_of(command: Sequence[str], patience_s: float, stdout: Any = subprocess.PIPE) -> tuple[int | None, str]:
    """A process's exit code, None if it had to be killed with its children, and its output."""
    with subprocess.Popen(command, stdout=stdout, text=True, start_new_session=True, cwd=ROOT) as process:
        try:
            said, _ = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""
    return process.returncode, said or ""


def sheets(result: Figures) -> list[Sheet]:
    found = result["found"]
    made = [
        Sheet(name, ("", "found"), [(key, str(value)) for key, value in facts.items()])
        for name, facts in found.items() if name != "training" or "failed" in facts
    ]  # fmt: skip
    verdict = Sheet("Pass or fail", ("figure", "found", "target", "reached"))
    if rounds := found.get("training", {}).get("rounds"):
        made += training.sheets(found["training"])
        wanted = [target for target in training.targets(rounds) if target.bound is not None]
        verdict.rows += target_sheet("", rounds, wanted).rows
    tested = found.get("tests", {})
    if "tests" in tested:
        bad = tested["failures"] + tested["errors"]
        verdict.rows.append(("tests that failed", str(bad), *reach(bad, "<=", 0)))
    for text, name, fact, sign, bound in _BOUNDS:
        if (value := found.get(name, {}).get(fact)) is not None:
            verdict.rows.append((text, f"{value:g}", *reach(value, sign, bound)))
    verdict.rows += [
        (name, f"failed: {facts['failed']}", "-", "no") for name, facts in found.items() if "failed" in facts
    ]
    return [*made, verdict]


def remarks(result: Figures) -> list[str]:
    found = result["found"].get("training", {})
    return training.remarks(found) if "rounds" in found else []


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="PART,...",
                        help="some of: tests, the numbers of the checks, training")  # fmt: skip
    parser.add_argument("--budget-s", type=float, default=450.0, metavar="SECONDS",
                        help="about how long all may take (default %(default)g)")  # fmt: skip


CASE = Case("The path to a GPU", measure, sheets, remarks, options=options)
