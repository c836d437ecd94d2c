"""One cell of a comparison: some jobs of one contender, a warm-up, a window of fixed length, and what it cost."""

from __future__ import annotations

import bisect
import statistics
import time
from typing import Any

from jobs import started
from proc import cpu_s, machine_busy_s, memory_mib, tree
from server import Server

_SKIP = 8  # batches at the start of a run that say nothing about the steady state


def run_cell(configs: list[dict[str, Any]], warm_s: float, window_s: float, server: Server | None) -> dict[str, Any]:
    """Runs a job for each configuration and measures them in one window.

    Args:
        configs: See `contenders`; one job each.
        warm_s: From the moment that all jobs have their first batch to the window.
        window_s: Length of the window.
        server: The daemon that they use, which then counts as part of their process tree.

    Returns:
        ``images_per_s`` (sum) and ``per_job``; ``cpu_s_per_1000`` delivered images and ``busy_cores`` of the whole
        tree; ``others_cores``: what the rest of the machine used meanwhile; ``first_batch_s`` of the slowest job;
        ``gap_ms``: the median wait at an epoch's begin less the median wait elsewhere (None without an epoch's
        begin); ``pss_mib``; ``sharing_factor`` by the daemon's count.
    """
    with started(configs) as jobs:
        jobs.go()
        time.sleep(warm_s)
        roots = jobs.pids + ([server.pid] if server else [])
        before = _rows(server)
        pids = tree(roots)
        start_ns, start_cpu_s, start_busy_s = time.monotonic_ns(), cpu_s(pids), machine_busy_s()
        time.sleep(window_s)
        stop_ns, stop_cpu_s, stop_busy_s = time.monotonic_ns(), cpu_s(pids), machine_busy_s()
        after = _rows(server)
        memory = memory_mib(tree(roots))
        records = jobs.stop()
        went_ns = jobs.went_ns
    elapsed_s = (stop_ns - start_ns) / 1e9
    counts = [delivered(r, start_ns, stop_ns) for r in records]
    used_s = stop_cpu_s - start_cpu_s
    found: dict[str, Any] = {
        "images_per_s": sum(counts) / elapsed_s,
        "per_job": [count / elapsed_s for count in counts],
        "cpu_s_per_1000": used_s / sum(counts) * 1000,
        "busy_cores": used_s / elapsed_s,
        "others_cores": max(0.0, (stop_busy_s - start_busy_s - used_s) / elapsed_s),
        "first_batch_s": max(r["came_ns"][0] - went_ns for r in records) / 1e9,
        "gap_ms": gap_ms(records),
        "pss_mib": memory["Pss"],
        "pss_shmem_mib": memory["Pss_Shmem"],
    }
    if server:
        filled, told = after[0] - before[0], after[1] - before[1]
        found["sharing_factor"] = told / filled if filled else 0.0
    return found


def delivered(record: dict[str, Any], start_ns: int, stop_ns: int) -> float:
    """Images that a job got in a window; a batch that comes across its edge counts in proportion."""
    came, images = record["came_ns"], record["images"]

    def upto(moment_ns: int) -> float:
        place = bisect.bisect_right(came, moment_ns)
        whole = sum(images[:place])
        if 0 < place < len(came):
            whole += images[place] * (moment_ns - came[place - 1]) / (came[place] - came[place - 1])
        return whole

    return upto(stop_ns) - upto(start_ns)


def gap_ms(records: list[dict[str, Any]]) -> float | None:
    """Over all jobs: median wait for a batch that begins an epoch, less the median wait for any other."""
    crossing: list[int] = []
    ordinary: list[int] = []
    for record in records:
        begins = set(record["epoch_begins"])
        waits = [came - asked for asked, came in zip(record["asked_ns"], record["came_ns"], strict=True)]
        for number, wait in enumerate(waits[_SKIP:], _SKIP):
            (crossing if number in begins else ordinary).append(wait)
    if not crossing or not ordinary:
        return None
    return (statistics.median(crossing) - statistics.median(ordinary)) / 1e6


def _rows(server: Server | None) -> tuple[int, int]:
    """(filled, delivered) of all streams; they live as long as their jobs, so within a window they only grow."""
    if server is None:
        return 0, 0
    streams = server.status()["streams"]
    return sum(s["rows_filled"] for s in streams), sum(s["rows_delivered"] for s in streams)
