"""How many images/s does a job get from an object store that answers after 50 ms, as a ratio to local files?

The same photos, once as files and once as objects of a store on this machine that waits 50 ms before each answer;
RandomResizedCrop(224) and a flip, batches of 64, shuffled. Both are measured in each round, on one daemon: with the
usual workers, which take all cores here, and with half of them, which leave cores for the network.

The store shares the workers' cores, and a real one does not. Its CPU time for an image is in a column of its own, and
a second ratio leaves it out: images for each CPU second of daemon, workers and job, which is what decides where all
cores are busy. On the loopback the store's side also does the work that a network card gives its receiver, so a real
store's ratio lies between the two.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.fingerprint import ROOT
from bench.harness.proc import cpu_s, machine_busy_s, tree
from bench.harness.rounds import Target, disturbed, target_sheet, values
from bench.harness.server import Server, running_server
from bench.harness.tables import Sheet, spread

_LATENCY_S = 0.05
_SAMPLES = 1 << 16  # so many that no epoch ends
_PLACES = ("files", "objects")


@contextlib.contextmanager
def _store() -> Iterator[tuple[int, dict[str, str]]]:
    """The store's process, and the environment that leads to it."""
    command = [sys.executable, "-m", "bench.harness.slow_store", str(_LATENCY_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield process.pid, {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench",
            }  # fmt: skip
        finally:
            process.kill()


def measure(run: Run) -> Figures:
    local = run.listed(_SAMPLES)
    remote = run.scratch / "objects.txt"
    remote.write_text("".join(f"s3://bench{line}" for line in local.read_text().splitlines(keepends=True)))
    rounds: list[list[dict[str, Any]]] = []
    counts = [run.workers, max(1, run.workers // 2)]
    with _store() as (pid, env):
        os.environ.update(env)  # the daemon inherits it
        for number in range(run.rounds(5)):
            rounds.append([])
            for workers in counts:
                scratch = run.scratch / f"{number}-{workers}"
                scratch.mkdir()
                with running_server(scratch, workers, roots=("s3://bench",)) as server:
                    for place, listed in zip(_PLACES, (local, remote), strict=True):
                        taken = _taken(server, listed, pid, *((1.0, 1.0) if run.smoke else (3.0, 5.0)))
                        rounds[-1].append({"place": place, "workers": workers, **taken})
    return {"workers": run.workers, "counts": counts, "rounds": rounds}


def _taken(server: Server, listed: Path, store: int, warm_s: float, window_s: float) -> dict[str, float]:
    """Takes batches as fast as they come."""
    with server.client(listed, zero_copy=True) as client:
        batches = iter(client)
        until_s = time.monotonic() + warm_s
        while time.monotonic() < until_s:
            next(batches)
        pids = tree([server.pid])
        before = cpu_s([store]), cpu_s(pids), time.process_time(), machine_busy_s()
        began_s, count = time.monotonic(), 0
        while (elapsed_s := time.monotonic() - began_s) < window_s:
            next(batches)
            count += 64
        after = cpu_s([store]), cpu_s(pids), time.process_time(), machine_busy_s()
    stores, ours, own, machine = (b - a for a, b in zip(before, after, strict=True))
    return {
        "images_per_s": count / elapsed_s, "cpu_ms": 1000 * ours / count, "job_ms": 1000 * own / count,
        "store_ms": 1000 * stores / count, "images_per_cpu_s": count / (ours + own),
        "others_cores": max(0.0, machine - stores - ours - own) / elapsed_s,
    }  # fmt: skip


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    sheet = Sheet(
        "One job; CPU ms per image", ("workers", "photos are", "images/s", "daemon and workers", "job", "store")
    )
    ratios = []
    for workers in result["counts"]:
        count = f"{workers} worker{'s' * (workers > 1)}"
        for place in _PLACES:
            which = {"place": place, "workers": workers}
            costs = [spread(values(rounds, figure, which), ".3f") for figure in ("cpu_ms", "job_ms", "store_ms")]
            sheet.rows.append((str(workers), place, spread(values(rounds, "images_per_s", which)), *costs))
        cells = {"place": "objects", "workers": workers}, {"place": "files", "workers": workers}
        ratios += [
            Target(f"images/s, objects / files, {count}", "images_per_s", *cells, 0.8),
            Target(f"images per CPU second without the store's, {count}", "images_per_cpu_s", *cells),
        ]
    return [sheet, target_sheet("Objects relative to files", rounds, ratios)]


CASE = Case("An object store with a latency of 50 ms", measure, sheets, lambda result: disturbed(result["rounds"]))
