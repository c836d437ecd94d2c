"""How fast do models train on a GPU that prepserver feeds, compared with DataLoaders, and with rows that are there?

Jobs train ResNet-18 or ResNet-50 (bf16, channels_last, batches of 256) on one GPU, one process each. All do the same
work: decode, RandomResizedCrop to 224, flip, a uint8 batch on the GPU, normalization there, a training step. At most
two steps are ahead of the GPU. Three things feed them:

- on the GPU: the same batch again and again, which is on the GPU already. No loader can be faster.
- prepserver: one daemon with a worker for each core; each job is a `PrepClient` with ``device="cuda"``.
- DataLoader: Pillow, with ``pin_memory`` and persistent workers; the jobs share the cores: each has its part of them as
  workers.

Everything runs on all cores of the machine, then on half of them, so that a model of today's size meets the few cores
that a GPU has on other machines. A cell begins when all jobs have warmed up and have their first batch. Processes of
jobs and daemons are kept for all cells, because their start takes longer than a cell. Cells that would begin after
``--budget-s`` are named.

Without a CUDA device the case says so and exits with 0; ``--device cpu`` shows that it works, in hours rather than
minutes unless it is a smoke run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.harness.case import Case, Figures, Run, say
from bench.harness.jobs import Jobs, started
from bench.harness.measure import measure_window
from bench.harness.rounds import Rounds, Target, target_sheet, values
from bench.harness.server import Server, running_server
from bench.harness.tables import Sheet, spread
from prepserver.memory.cgroups import cpus

_FEEDS = {"resident": "on the GPU", "prepserver": "prepserver", "torch_pillow": "DataLoader"}
_GROUPS = [("resnet50", 1), ("resnet18", 4), ("resnet18", 1), ("resnet18", 2), ("resnet50", 4)]
"""(model, jobs)."""
_PARTS = {1: "all", 2: "half"}
_FEEDS_OF = [(1, "resident"), (1, "prepserver"), (1, "torch_pillow"), (2, "prepserver"), (2, "torch_pillow")]
"""(part of the cores, feed) of each group; rows that are on the GPU need no cores."""
LIMIT_S = 90.0


def measure(run: Run) -> Figures:
    device = run.options.device
    if device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing to measure here")
        raise SystemExit(0)
    batch, spans_s, samples = (4, (0.5, 1.0), 800) if run.smoke else (256, (1.0, 3.0), 256_000)
    listed, cores = run.listed(samples), sorted(os.sched_getaffinity(0))
    cores = cores[: max(1, int(cpus() or len(cores)))]  # a container may see all cores and have time on few
    cells: list[dict[str, Any]] = []
    left_out: list[str] = []
    until_s = time.monotonic() + run.options.budget_s
    job = partial(run.job, listed=listed, device=device, batch=batch)
    with contextlib.ExitStack() as stack:
        place = _Place(run, cores, spans_s, stack)
        asked = itertools.product(_GROUPS, _FEEDS_OF)
        for (model, jobs), (part, feed) in [(("resnet18", 1), each) for each in _FEEDS_OF[:3]] if run.smoke else asked:
            text = f"{model}, {jobs} job(s), {_PARTS[part]} of {len(cores)} cores, {_FEEDS[feed]}"
            if time.monotonic() > until_s:
                left_out.append(text)
                continue
            found = place.cell(partial(job, feed, model=model), jobs, part, is_own=feed == "prepserver")
            cells.append({"model": model, "jobs": jobs, "part": part, "feed": feed, "cores": len(cores), **found})
            say(f"{text}: {json.dumps({k: v for k, v in found.items() if k in _TOLD})}")
            run.keep({"rounds": [cells], "left_out": []})
    return {"cores": len(cores), "rounds": [cells], "left_out": left_out}


_TOLD = ("images_per_s", "waited_percent", "next_p50_ms", "failed")


class _Place:
    """The jobs and daemons of all cells. They are kept, because their start takes longer than a cell.

    Args:
        run: This run.
        cores: The machine's cores.
        spans_s: How long a cell warms up, and how long it is measured.
        stack: Ends all of them.
    """

    def __init__(self, run: Run, cores: list[int], spans_s: tuple[float, float], stack: contextlib.ExitStack) -> None:
        self._run, self._cores, self._spans_s, self._stack = run, cores, spans_s, stack
        self._jobs: Jobs | None = None
        self._servers: dict[int, Server] = {}  # by the part of the cores that they use

    def cell(self, job: Callable[..., dict[str, Any]], jobs: int, part: int, *, is_own: bool) -> Figures:
        """The figures of one cell, or why it failed: for lack of GPU memory, for example.

        `job` makes the configuration of a job with some workers.
        """
        cores = self._cores[: max(1, len(self._cores) // part)]
        directory = self._run.scratch / _PARTS[part]
        config = job(workers=max(1, len(cores) // jobs), runtime_dir=str(directory / "run"))
        try:
            with _only_on(cores):
                server = self._server(directory, part, len(cores)) if is_own else None
                return self._measure([config] * jobs, cores, server)
        except SystemExit as error:
            return {"failed": str(error)}

    def _server(self, directory: Path, part: int, workers: int) -> Server:
        if part not in self._servers:
            directory.mkdir(exist_ok=True)
            self._servers[part] = self._stack.enter_context(running_server(directory, workers))
        return self._servers[part]

    def _measure(self, configs: list[dict[str, Any]], cores: list[int], server: Server | None) -> Figures:
        if self._jobs is None:
            self._jobs = self._stack.enter_context(started(configs))
        else:
            self._jobs.again(configs)
        self._jobs.stay_on(cores)
        try:
            with self._jobs.limited(LIMIT_S):
                found = measure_window(self._jobs, *self._spans_s, server)
                self._jobs.close()
        except SystemExit:  # a job failed; the next cell has new ones
            self._jobs.kill()
            self._jobs = None
            raise
        return found


@contextlib.contextmanager
def _only_on(cores: list[int]) -> Iterator[None]:
    """Keeps this process, and those that it starts meanwhile, on some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def targets(rounds: Rounds) -> list[Target]:
    """Of all cells: the ratios to the DataLoaders and to what the GPU can do."""
    found = []
    for (model, jobs), part in itertools.product(_GROUPS, _PARTS):
        which = {"model": model, "jobs": jobs, "part": part}
        own, other = which | {"feed": "prepserver"}, which | {"feed": "torch_pillow"}
        most = which | {"feed": "resident", "part": 1}
        what = f"{model}, {jobs} job(s), {_PARTS[part]} of the cores"
        could = Target("", "images_per_s", most, other).found(rounds)
        # Where the DataLoaders keep a GPU busier than a third, nothing can be three times as fast.
        bound = 3.0 if jobs == 4 and could and could[0] >= 3.0 else None
        found += [
            Target(f"{what}: images/s, prepserver / DataLoaders", "images_per_s", own, other, bound),
            Target(f"{what}: images/s, prepserver / rows on the GPU", "images_per_s", own, most),
        ]
        if (model, jobs, part) == ("resnet50", 1, 1):
            found.append(Target(f"{what}: time that it waits for rows, %", "waited_percent", own, None, 1.0, "<="))
    return found


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    sheet = Sheet(
        "Training",
        ("model", "jobs", "cores", "rows", "images/s in sum", "waits for rows, %", "next(), ms", "CPU s per 1000"),
    )
    for cell in rounds[0]:
        figures = [
            spread(values(rounds, name, {k: cell[k] for k in ("model", "jobs", "part", "feed")}), form)
            for name, form in (("images_per_s", ".0f"), ("waited_percent", ".2f"), ("next_p50_ms", ".2f"),
                               ("cpu_s_per_1000", ".2f"))
        ]  # fmt: skip
        sheet.rows.append((cell["model"], str(cell["jobs"]), _PARTS[cell["part"]], _FEEDS[cell["feed"]], *figures))
    return [sheet, target_sheet("Ratios", rounds, targets(rounds))]


def remarks(result: Figures) -> list[str]:
    failed = [
        f"{cell['model']}, {cell['jobs']} job(s), {_FEEDS[cell['feed']]} failed: {cell['failed']}"
        for cell in result["rounds"][0] if "failed" in cell
    ]  # fmt: skip
    return [*failed, *(f"Left out for lack of time: {text}" for text in result["left_out"])]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="where the models train (default cuda)")
    parser.add_argument("--budget-s", type=float, default=330.0, metavar="SECONDS",
                        help="about how long all cells may take together (default %(default)g)")  # fmt: skip


CASE = Case("Training on a GPU", measure, sheets, remarks, options=options)
