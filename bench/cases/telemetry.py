"""What do the counters cost?

They are always on, so only another commit could run without them (`versus`), and they cost less than the difference
between two runs. So each part is measured by itself, in microseconds of a thread's CPU time, and set against the least
work that it
counts: in a worker the clocks around the ops of a row, against that row (a photo to 224 pixels); in the daemon its work
for a chunk of 64 rows, against these rows, and once a second for a worker and a job, and for what
reports keep of a job; in the client its work in a step.
Five rounds.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.harness.case import Case, Figures, Run
from bench.harness.rounds import values
from bench.harness.tables import Sheet, reach, spread

_CHUNK_ROWS = 64
_OPS = 4
_MOST_SHARE, _MOST_STEP_MS = 0.01, 0.05


def measure(run: Run) -> Figures:
    from prepclient.session import Totals
    from prepserver.config import usable_cores
    from prepserver.pipeline.ops import CenterCrop, RandomHorizontalFlip, Resize
    from prepserver.pipeline.pipeline import Pipeline
    from prepserver.pipeline.sources import SyntheticImages
    from prepserver.protocol.work import Filled
    from prepserver.telemetry import cores
    from prepserver.telemetry.history import HistoryFile, Slice
    from prepserver.telemetry.stages import Stages
    from prepserver.transform import SampleKey, make_rows, row_makers

    ops = [Resize(256), CenterCrop(224), RandomHorizontalFlip()]
    pipeline = Pipeline.from_ops(ops, 1, SyntheticImages(1).columns)
    (maker,) = row_makers(pipeline)
    (field,) = maker.fields
    row = np.zeros(field.shape, field.dtype)
    photos = [path.read_bytes() for path, _ in run.photos.files[:50]]
    stages, wire = Stages(), {1: pipeline.to_wire()}
    report = Filled(1, [], 10**6, 10**8, 0, [], [10**6] * _OPS, time.monotonic_ns())

    folder = tempfile.TemporaryDirectory()
    history = HistoryFile(Path(folder.name) / "job.log", {}, 1, fresh=True)
    track = history.begin({}, 1)
    names = ("images", "wait", "copy", "own", "busy", "workers", "ring", "ranks", "gpu", "gpus")

    def step() -> None:
        for _ in range(4):
            time.monotonic_ns()
        Totals(1, 2, 3, 4, 5, max(0, 6))

    def make(number: int) -> None:
        make_rows({field.column: photos[number % len(photos)]}, SampleKey(0, 0, number), [(maker, [row])])

    calls: dict[str, tuple[int, Callable[[int], object]]] = {
        "row": (100, make),
        "clock": (20_000, lambda _: time.monotonic_ns()),
        "chunk": (2_000, lambda _: stages.filled(1, _CHUNK_ROWS, wire, report)),
        "thread": (1_000, lambda _: cores.ran_and_waited_s(os.getpid())),
        "history": (3_000, lambda n: history.add(track, Slice(float(n), 1.0, dict.fromkeys(names, 0.1234)), None)),
        "cores": (200, lambda _: (usable_cores(), cores.busy_s())),
        "step": (5_000, lambda _: step()),
    }
    rounds = [[{name: _us(*call) for name, call in calls.items()}] for _ in range(run.rounds(5))]
    folder.cleanup()
    return {"rounds": rounds}


def _us(times: int, call: Callable[[int], object]) -> float:
    began_ns = time.thread_time_ns()
    for number in range(times):
        call(number)
    return (time.thread_time_ns() - began_ns) / times / 1e3


def sheets(result: Figures) -> list[Sheet]:
    of = {name: values(result["rounds"], name, {}) for name in result["rounds"][0][0]}
    shares = [
        ((_OPS * clock + chunk / _CHUNK_ROWS) / row)
        for clock, chunk, row in zip(of["clock"], of["chunk"], of["row"], strict=True)
    ]
    sheet = Sheet("The counters' own time, microseconds of CPU", ("what", "found", "target", "reached"))
    for name, words in (
        ("row", "a row, for comparison"), ("clock", "reading the clock"), ("chunk", "the daemon, for a chunk"),
        ("thread", "the daemon, once a second for each worker and job"),
        ("history", "the daemon's log thread, once a second for each job"), ("cores", "the daemon, once a second"),
    ):  # fmt: skip
        sheet.rows.append((words, spread(of[name], ".2f"), "", ""))
    sheet.rows.append(
        ("the client, for a step", spread(of["step"], ".2f"), *reach(max(of["step"]) / 1e3, "<", _MOST_STEP_MS))
    )
    worst = max(shares)
    sheet.rows.append(("worker and daemon, of a row's time", spread(shares, ".5f"), *reach(worst, "<", _MOST_SHARE)))
    return [sheet]


CASE = Case("What the counters cost", measure, sheets)
