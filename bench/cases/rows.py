"""Rows that are ready: how many a job can be given, and what daemon and client cost when the workers do not decode.

``python bench/rows.py [--smoke] [--markdown]``. Writes ``bench/out/rows.json``. The real daemon, the real loop of
real workers, a real client; `fill` alone is replaced, see `idle_worker.py`. README.md has the method.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from proc import cpu_s, machine_busy_s, tree
from server import Server, running_server
from tables import Sheet, spread

_LENT_PER_S, _COPIED_PER_S = 40_000.0, 15_000.0
_PACE_PER_S, _PACE_CORES = 3000.0, 0.05
_SIZE = 224
_CHUNK = 16
_RATE_CELLS = [(fill, batch, lends) for fill in ("nothing", "copy") for batch in (64, 256) for lends in (True, False)]
_COST_CELLS = [
    (who, batch, lends) for who in ("the workers", "the job") for batch in (64, 256) for lends in (True, False)
]
_COMMAND = (str(Path(__file__).with_name("stamped_daemon.py")),)
_SOURCE_ROWS = 1 << 24  # no end of an epoch comes near
_PAGES_S = 1.0  # in which the daemon has touched the pages of a new ring, which it does once


def main() -> None:
    command.run(
        "rows", "Rows that are ready.",
        lambda arguments: measure(arguments.workers, *((1, 0.5) if arguments.smoke else (3, 3.0))),
        sheets, takes_data=False,
    )  # fmt: skip


def measure(workers: int, rounds: int, window_s: float) -> dict[str, Any]:
    """All cells in each round, so that a slow minute meets all of them."""
    import torch

    torch.set_num_threads(1)
    machine = fingerprint()
    rates: list[list[dict[str, Any]]] = []
    costs: list[list[dict[str, Any]]] = []
    for _ in range(rounds):
        rates.append([])
        costs.append([])
        for fill, batch, lends in _RATE_CELLS:
            with served(workers, fill) as server:
                found = take(server, batch, lends, window_s)
            rates[-1].append({"fill": fill, "batch": batch, "lends": lends, **found})
        for who, batch, lends in _COST_CELLS:
            by_job = who == "the job"
            with served(workers, "nothing" if by_job else "sleep", workers / _PACE_PER_S) as server:
                found = take(server, batch, lends, 2 * window_s, _PACE_PER_S if by_job else None)
            costs[-1].append({"pace": who, "batch": batch, "lends": lends, **found})
    return {"machine": machine, "workers": workers, "rates": rates, "costs": costs}


@contextmanager
def served(workers: int, fill: str, sample_s: float = 0.0) -> Iterator[Server]:
    """A daemon whose workers do what `idle_worker.py` says."""
    os.environ |= {"BENCH_WORKER": "idle_worker.py", "BENCH_FILL": fill, "BENCH_SAMPLE_S": str(sample_s)}
    with (
        tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name,
        running_server(Path(name), workers, _COMMAND) as server,
    ):
        yield server


def take(server: Server, batch: int, lends: bool, window_s: float, pace_per_s: float | None = None) -> dict[str, Any]:
    """Takes batches for a while.

    Args:
        server: Whose.
        batch: Images in one.
        lends: Whether they are lent (``zero_copy``) or copied, as is the default.
        window_s: For how long, after a warm-up.
        pace_per_s: Images a second that the job wants; None for all that there are.

    Returns:
        ``images_per_s``, and by user and system time of the processes, all of their threads: ``daemon_cores`` and
        ``client_cores`` (this process, whose loop does nothing else), ``workers_cores``, ``others_cores``.
    """
    from prepclient import PrepClient, RandomResizedCrop, SyntheticImages

    with PrepClient(
        SyntheticImages(_SOURCE_ROWS), [RandomResizedCrop(_SIZE)], batch_size=batch, shuffle=True,
        runtime_dir=server.runtime_dir, zero_copy=lends,
    ) as client:  # fmt: skip
        batches = iter(client)
        for _ in range(max(16, 4096 // batch)):  # the ring's pages, and the first blocks for copies
            next(batches)
        time.sleep(_PAGES_S)
        children = [pid for pid in tree([server.pid]) if pid != server.pid]
        began_s, count = time.monotonic(), 0
        before = cpu_s([server.pid]), time.process_time(), cpu_s(children), machine_busy_s()
        while (now_s := time.monotonic()) - began_s < window_s:
            if pace_per_s is not None and (ahead_s := began_s + count * batch / pace_per_s - now_s) > 0:
                time.sleep(ahead_s)
            next(batches)
            count += 1
        elapsed_s = time.monotonic() - began_s
        after = cpu_s([server.pid]), time.process_time(), cpu_s(children), machine_busy_s()
    daemon, client_cpu, worker, machine = ((b - a) / elapsed_s for a, b in zip(before, after, strict=True))
    return {
        "images_per_s": count * batch / elapsed_s, "daemon_cores": daemon, "client_cores": client_cpu,
        "workers_cores": worker, "others_cores": max(0.0, machine - daemon - client_cpu - worker),
    }  # fmt: skip


def sheets(result: dict[str, Any]) -> list[Sheet]:
    rates = Sheet(
        f"Ready rows of {_SIZE}x{_SIZE}x3, 1 job, {result['workers']} workers, images/s",
        ("a worker's row", "images a batch", "zero_copy", "to reach", "reached", "copied", "to reach", "reached"),
    )
    for fill, batch in dict.fromkeys((fill, batch) for fill, batch, _ in _RATE_CELLS):
        cells: list[str] = []
        for lends, target in ((True, _LENT_PER_S), (False, _COPIED_PER_S)):
            values = _values(result["rates"], {"fill": fill, "batch": batch, "lends": lends}, "images_per_s")
            cells += [spread(values), f">= {target:.0f}", _reached(values, target)]
        words = "is left as it is" if fill == "nothing" else "is copied from a ready one"
        rates.rows.append((words, str(batch), *cells))
    costs = Sheet(
        f"CPU at {_PACE_PER_S:.0f} images/s, % of one core",
        (
            "the pace is set by",
            "images a batch",
            "batches are",
            "images/s",
            "daemon",
            "client",
            "together",
            "to reach",
            "reached",
        ),
    )
    for who, batch, lends in _COST_CELLS:
        wanted = {"pace": who, "batch": batch, "lends": lends}
        daemon, client, rate = (
            _values(result["costs"], wanted, name) for name in ("daemon_cores", "client_cores", "images_per_s")
        )
        both = [100 * (a + b) for a, b in zip(daemon, client, strict=True)]
        costs.rows.append((
            who, str(batch), "lent" if lends else "copied", spread(rate), spread([100 * x for x in daemon], ".1f"),
            spread([100 * x for x in client], ".1f"), spread(both, ".1f"), f"< {100 * _PACE_CORES:g}",
            _reached([-x for x in both], -100 * _PACE_CORES),
        ))  # fmt: skip
    return [rates, costs]


def _values(rounds: list[list[dict[str, Any]]], wanted: dict[str, Any], name: str) -> list[float]:
    return [c[name] for cells in rounds for c in cells if all(c[key] == value for key, value in wanted.items())]


def _reached(values: list[float], target: float) -> str:
    return "yes" if sorted(values)[len(values) // 2] >= target else "no"


if __name__ == "__main__":
    main()
