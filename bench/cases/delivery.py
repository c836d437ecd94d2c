"""How long from the last row of a batch being full to its tensor in a client's hands, and back.

``python bench/delivery.py [--smoke] [--markdown]``. The real daemon, real workers' loop, real client with
``zero_copy=True``; see `stamped_worker.py` for how the moment is known, README.md for the method. Writes
``bench/out/delivery.json``.

Three times are told, for batches of 64 and 1024 images of 224x224x3 (9.6 and 154 MB):

- *announce*: from the last row full to the tensor in hand, for a client that waits in ``next()``. Worker to
  daemon, daemon to client, views made.
- *ready*: the whole of ``next()`` when the batch was there before: gives the last batch back, lends the next.
- *release*: from the call of that ``next()`` to a worker beginning to fill a row that it gave back.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from photos import find_photos, write_list
from server import Server, running_server
from tables import Sheet

_SKIP = 4
_READY_P99_US = 2000.0
_CELLS = ((64, 0.001, 1000), (64, 0.016, 150), (1024, 0.001, 150), (64, 0.0, 200), (1024, 0.0, 64))
"""(images a batch, pause in place of filling 16 rows or 0 for decoding them, batches taken). The second is as long
in filling as the third: a client that slept longer wakes up colder, and that is not the batch's size."""

_COMMAND = (str(Path(__file__).with_name("stamped_daemon.py")),)


def main() -> None:
    command.run(
        "delivery", "Delivery of a batch.",
        lambda arguments: measure(arguments.data, arguments.workers, 0.1 if arguments.smoke else 1.0),
        sheets,
    )  # fmt: skip


def measure(data: str | None, workers: int, part: float) -> dict[str, Any]:
    machine = fingerprint()
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        listed = scratch / "list.txt"
        write_list(find_photos(data, scratch), 1 << 14, listed)
        for batch, pause_s, count in _CELLS:
            os.environ["BENCH_PAUSE_S"] = str(pause_s)
            with running_server(scratch, workers, _COMMAND) as server:
                found = run(server, listed, batch, pause_s, max(_SKIP * 3, int(count * part)))
                cells.append({"pause_s": pause_s, "batch": batch, "workers": workers, **found})
    return {"machine": machine, "cells": cells}


def run(server: Server, listed: Path, batch: int, pause_s: float, count: int) -> dict[str, Any]:
    """Takes `count` batches as they come; then, of a quiet machine, half as many when the ring is full."""
    from prepclient import FileList, PrepClient, RandomHorizontalFlip, RandomResizedCrop

    ops = [RandomResizedCrop(224), RandomHorizontalFlip()]
    with PrepClient(
        FileList(listed), ops, batch_size=batch, shuffle=True, runtime_dir=server.runtime_dir, zero_copy=True,
        fields="dict", drop_last=True,
    ) as client:  # fmt: skip
        batches = _endless(client)
        announce_us: list[float] = []
        for number in range(count):
            asked_ns = time.monotonic_ns()
            fields = next(batches)
            in_hand_ns = time.monotonic_ns()
            full_ns = int(fields["label"].max())
            if number >= _SKIP and asked_ns < full_ns:
                announce_us.append((in_hand_ns - full_ns) / 1e3)
        found: dict[str, Any] = {"batch_mib": round(batch * 224 * 224 * 3 / 2**20, 1)}
        found["announce_us"] = summary(announce_us)
        if pause_s:
            found |= _ready_and_release(batches, batch, pause_s, count // 2)
    return found


def _ready_and_release(batches: Any, batch: int, fill_s: float, count: int) -> dict[str, Any]:
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
        # the rows of the last releases were not handed to us any more
        if after is not None and after - call < pause_s * 1e9:
            release_us.append((after - call) / 1e3)
    return {"ready_us": summary(ready_us[_SKIP:]), "release_us": summary(release_us)}


def _endless(client: Any) -> Any:
    while True:
        yield from client


def summary(values: list[float]) -> dict[str, float]:
    """p50, p99, least, most and how many; empty if there are none."""
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    found = {"p50": cuts[49], "p99": cuts[98], "min": min(values), "max": max(values)}
    return {**{k: round(v, 1) for k, v in found.items()}, "count": len(values)}


def sheets(result: dict[str, Any]) -> list[Sheet]:
    sheet = Sheet(
        "Delivery, microseconds: p50 / p99 (samples)",
        (
            *("rows are filled", "images a batch", "MiB a batch", "announce", "ready", "p99 to reach", "reached"),
            "release",
        ),
    )
    for cell in result["cells"]:
        pause_ms = cell["pause_s"] * 1e3
        words = f"by a pause of {pause_ms:g} ms for 16" if pause_ms else f"by decoding, {cell['workers']} workers"
        ready = cell.get("ready_us", {})
        sheet.rows.append((
            words, str(cell["batch"]), f"{cell['batch_mib']:g}", _text(cell["announce_us"]), _text(ready),
            *((f"< {_READY_P99_US:.0f}", "yes" if ready["p99"] < _READY_P99_US else "no") if ready else ("-", "-")),
            _text(cell.get("release_us", {})),
        ))  # fmt: skip
    return [sheet]


def _text(found: dict[str, float]) -> str:
    return f"{found['p50']:.0f} / {found['p99']:.0f} ({found['count']})" if found else "-"


if __name__ == "__main__":
    main()
