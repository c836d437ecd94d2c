"""How long does it take from a full batch to the client's tensor, and back?

The real daemon, the workers' real loop, and a client with ``zero_copy=True``. The rows themselves tell when they were
full (``stamp`` in `bench.harness.stand_in`), for batches of 64 and 1024 images of 224x224x3 (9 and 154 MB):

- *announce*: from the last row being full to the tensor in the hands of a client that waits in ``next()``. This is the
  worker's message, the scheduler, the daemon's message, and the views. A batch that was full before the client asked
  does not count.
- *ready*: the whole of ``next()`` for a batch that was ready before; it releases the last one and lends the next.
- *release*: from the call of that ``next()`` until a resting worker begins to fill a released row: client, daemon,
  worker, so two messages and two wake-ups.

Rows are filled *by a pause*: a worker sleeps a millisecond for 16 rows and writes only the stamps, so the cores are
free and the path itself is measured. Once more 64 images take 16 ms for 16 rows, so that filling them takes as long as
filling 1024: a process that has slept for longer wakes up slower, whatever it is then given. So the second and the
third line show what the size of a batch does. Or rows are filled *by decoding*: the workers keep all cores busy, and
daemon and client have to get one first.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.server import Server, running_server
from bench.harness.tables import NO_TARGET, Sheet, reach

_SKIP = 4
_READY_P99_US = 2000.0
_CELLS = ((64, 0.001, 1000), (64, 0.016, 150), (1024, 0.001, 150), (64, 0.0, 200), (1024, 0.0, 64))
"""(images per batch, pause in place of filling 16 rows or 0 for decoding them, batches taken)."""


def measure(run: Run) -> Figures:
    listed = run.listed(1 << 14)
    part = 0.1 if run.smoke else 1.0
    cells: list[dict[str, Any]] = []
    for batch, pause_s, count in _CELLS:
        with running_server(run.scratch, run.workers, fill="stamp", sample_s=pause_s / 16) as server:
            found = deliver(server, listed, batch, pause_s, max(_SKIP * 3, int(count * part)))
        cells.append({"pause_s": pause_s, "batch": batch, "workers": run.workers, **found})
    return {"cells": cells}


def deliver(server: Server, listed: Path, batch: int, pause_s: float, count: int) -> dict[str, Any]:
    """Takes `count` batches as they come; with a pause also half as many when the ring is full."""
    with server.client(listed, batch_size=batch, zero_copy=True, fields="dict", drop_last=True) as client:
        batches = itertools.chain.from_iterable(itertools.repeat(client))
        announce_us: list[float] = []
        for number in range(count):
            asked_ns = time.monotonic_ns()
            fields = next(batches)
            in_hand_ns = time.monotonic_ns()
            full_ns = int(fields["label"].max())
            if number >= _SKIP and asked_ns < full_ns:
                announce_us.append((in_hand_ns - full_ns) / 1e3)
        found = {"batch_mib": round(batch * 224 * 224 * 3 / 2**20, 1), "announce_us": summary(announce_us)}
        return found | (_ready_and_release(batches, batch, pause_s, count // 2) if pause_s else {})


def _ready_and_release(batches: Iterator[Any], batch: int, fill_s: float, count: int) -> dict[str, Any]:
    # Long enough that the workers fill the ring and rest: then a worker begins because of our release alone.
    pause_s = 0.02 + 2 * fill_s * batch / 16
    calls: list[int] = []
    ready_us: list[float] = []
    begins: set[int] = set()
    for _ in range(count):
        time.sleep(pause_s)
        calls.append(time.monotonic_ns())
        fields = next(batches)
        ready_us.append((time.monotonic_ns() - calls[-1]) / 1e3)
        begins.update(fields["index"].tolist())
    ordered = sorted(begins)
    release_us = []
    for call in calls[_SKIP:]:
        after = next((b for b in ordered if b > call), None)
        # the rows of the last releases did not come to us any more
        if after is not None and after - call < pause_s * 1e9:
            release_us.append((after - call) / 1e3)
    return {"ready_us": summary(ready_us[_SKIP:]), "release_us": summary(release_us)}


def summary(values: list[float]) -> dict[str, float]:
    """p50, p99, least, most and how many; empty for fewer than two."""
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    found = {"p50": cuts[49], "p99": cuts[98], "min": min(values), "max": max(values)}
    return {**{k: round(v, 1) for k, v in found.items()}, "count": len(values)}


def sheets(result: Figures) -> list[Sheet]:
    sheet = Sheet(
        "Delivery, microseconds: p50 / p99 (samples)",
        (
            *("rows are filled", "images per batch", "MiB per batch", "announce", "ready", "p99 target", "reached"),
            "release",
        ),
    )
    for cell in result["cells"]:
        pause_ms = cell["pause_s"] * 1e3
        words = f"by a pause of {pause_ms:g} ms for 16" if pause_ms else f"by decoding, {cell['workers']} workers"
        ready = cell.get("ready_us", {})
        sheet.rows.append((
            words, str(cell["batch"]), f"{cell['batch_mib']:g}", _text(cell["announce_us"]), _text(ready),
            *(reach(ready["p99"], "<", _READY_P99_US) if ready else NO_TARGET), _text(cell.get("release_us", {})),
        ))  # fmt: skip
    return [sheet]


def _text(found: dict[str, float]) -> str:
    return f"{found['p50']:.0f} / {found['p99']:.0f} ({found['count']})" if found else "-"


CASE = Case("Delivery of a batch", measure, sheets)
