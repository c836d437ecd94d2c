"""One cell of a comparison: some jobs of one contender, a warm-up, and a window in which they are measured."""

from __future__ import annotations

import bisect
import statistics
import time
from typing import Any

from bench.harness.jobs import Job, Jobs, started
from bench.harness.proc import cpu_s, machine_busy_s, memory_mib, tree
from bench.harness.server import Server

_SKIP = 8  # batches at the start of a run, which are not the steady state


def run_cell(
    configs: list[dict[str, Any]], warm_s: float, window_s: float, server: Server | None, *,
    service: Job | None = None, limit_s: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Runs a job for each configuration and measures all of them in one window.

    Args:
        configs: One per job; see `bench.harness.contender`.
        warm_s: Seconds between the moment when each job has its first batch and the window.
        window_s: Length of the window.
        server: The daemon that the jobs use; it counts as part of their process tree.
        service: Another contender's process that serves the jobs; it counts too.
        limit_s: When to give up.

    Returns:
        As `measure_window`.
    """
    with started(configs, limit_s) as jobs:
        return measure_window(jobs, warm_s, window_s, server, service)


def measure_window(
    jobs: Jobs, warm_s: float, window_s: float, server: Server | None, service: Job | None = None
) -> dict[str, Any]:
    """Lets jobs go, and measures all of them in one window; the arguments are those of `run_cell`.

    Returns:
        ``images_per_s`` in sum, ``per_job`` for each job, and ``steady_per_s``, the sum without the waits between
        epochs. A batch that arrives across the window's edge counts in proportion.
        ``cpu_s_per_1000``: user and system time of the whole tree per 1000 delivered images; ``others_cores``: what
        the rest of the machine used meanwhile.
        ``import_s``: from a job's start until it has imported everything; ``first_batch_s``: from then until the
        slowest job has its first batch.
        ``gap_ms``: the median wait for the first batch of an epoch, less the median wait for any other; None if no
        epoch began. ``next_p50_ms`` and ``next_p99_ms`` of all waits in the window.
        ``pss_mib`` and ``pss_shmem_mib`` of the whole tree at the window's end.
        With a daemon also ``server_own_mib``, the memory of its own part of the tree without shared memory, and
        ``sharing_factor``, the rows it delivered per row it made. With PrepClients also ``waited_percent``, the part of
        the time since its first batch in which the job that waited most waited for rows.
    """
    jobs.go()
    time.sleep(warm_s)
    served_by = [root.pid for root in (server, service) if root]
    before = _rows(server)
    start_ns, start_cpu_s, start_busy_s = time.monotonic_ns(), cpu_s(tree(jobs.pids + served_by)), machine_busy_s()
    time.sleep(window_s)
    stop_ns, stop_cpu_s, stop_busy_s = time.monotonic_ns(), cpu_s(tree(jobs.pids + served_by)), machine_busy_s()
    after = _rows(server)
    memory, servers = memory_mib(tree(jobs.pids + served_by)), memory_mib(tree(served_by))
    records = jobs.stop()
    elapsed_s = (stop_ns - start_ns) / 1e9
    counts = [delivered(r, start_ns, stop_ns) for r in records]
    if not sum(counts):
        raise SystemExit("no batch came in the window")
    used_s = stop_cpu_s - start_cpu_s
    waits = waits_ms(records, start_ns, stop_ns)
    found: dict[str, Any] = {
        "images_per_s": sum(counts) / elapsed_s,
        "per_job": [count / elapsed_s for count in counts],
        "steady_per_s": sum(steady_per_s(r, start_ns, stop_ns) for r in records),
        "cpu_s_per_1000": used_s / sum(counts) * 1000,
        "others_cores": max(0.0, (stop_busy_s - start_busy_s - used_s) / elapsed_s),
        "import_s": (jobs.went_ns - jobs.began_ns) / 1e9,
        "first_batch_s": max(r["came_ns"][0] - jobs.went_ns for r in records) / 1e9,
        "gap_ms": gap_ms(records),
        "next_p50_ms": quantile(waits, 0.5),
        "next_p99_ms": quantile(waits, 0.99),
        "pss_mib": memory["Pss"],
        "pss_shmem_mib": memory["Pss_Shmem"],
    }
    if waited := [record["waited_fraction"] for record in records if "waited_fraction" in record]:
        found["waited_percent"] = 100 * max(waited)
    if server:
        filled, told = after[0] - before[0], after[1] - before[1]
        found["sharing_factor"] = told / filled if filled else 0.0
        found["server_own_mib"] = servers["Pss"] - servers["Pss_Shmem"]
    return found


def delivered(record: dict[str, Any], start_ns: int, stop_ns: int) -> float:
    """Images that a job got in a window; a batch that arrives across its edge counts in proportion."""
    came, images = record["came_ns"], record["images"]

    def upto(moment_ns: int) -> float:
        place = bisect.bisect_right(came, moment_ns)
        whole: float = sum(images[:place])
        if 0 < place < len(came):
            whole += images[place] * (moment_ns - came[place - 1]) / (came[place] - came[place - 1])
        return whole

    return upto(stop_ns) - upto(start_ns)


def steady_per_s(record: dict[str, Any], start_ns: int, stop_ns: int) -> float:
    """Images/s of a job in a window, without the waits between the last batch of an epoch and the next one."""
    came = record["came_ns"]
    begins = [0, *record["epoch_begins"]]
    images, elapsed_ns = 0.0, 0
    for first, after in zip(begins, [*begins[1:], len(came)], strict=True):
        begin_ns, end_ns = max(start_ns, came[first]), min(stop_ns, came[after - 1])
        if begin_ns < end_ns:
            images += delivered(record, begin_ns, end_ns)
            elapsed_ns += end_ns - begin_ns
    return images / elapsed_ns * 1e9 if elapsed_ns else 0.0


def waits_ms(records: list[dict[str, Any]], start_ns: int, stop_ns: int) -> list[float]:
    """How long ``next()`` took for each batch that arrived in the window, over all jobs, in ascending order."""
    return sorted(
        (came - asked) / 1e6
        for record in records
        for asked, came in zip(record["asked_ns"], record["came_ns"], strict=True)
        if start_ns <= came <= stop_ns
    )


def quantile(ascending: list[float], part: float) -> float | None:
    """The value that a `part` of them does not exceed; None if there are none."""
    return ascending[min(len(ascending) - 1, int(part * len(ascending)))] if ascending else None


def gap_ms(records: list[dict[str, Any]]) -> float | None:
    """Over all jobs: the median wait for a batch that begins an epoch, less the median wait for any other."""
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
    """(filled, delivered) of all streams. Streams live as long as their jobs, so in a window both only grow."""
    if server is None:
        return 0, 0
    streams = server.status()["streams"]
    return sum(s["rows_filled"] for s in streams), sum(s["rows_delivered"] for s in streams)
