"""How long does a client wait for its first batch, and how much memory does a server take?

A daemon runs and has listed the files. Thirty times, a process that has imported everything makes a client, takes the
iterator and the first batch of 64, and closes. Each client has another seed, so nothing is ready for it: the daemon
lays out a ring, and the workers decode 64 photos. Then a daemon is started three times, and a client takes its first
batch: this includes the daemon's start and the import of torch in the zygote. The listing is in the cache.

Memory is read from smaps_rollup after 60 batches. A process's *own* memory is Pss_Anon + Pss_File. The ring
(Pss_Shmem) stands apart, because all processes share it.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench.harness.case import Case, Figures, Run
from bench.harness.proc import memory_mib, tree
from bench.harness.server import Server, running_server
from bench.harness.tables import NO_TARGET, Sheet, reach

_ATTACH = {"iterator_ms": ("to the iterator, ms", 100.0), "first_batch_ms": ("to the first batch of 64, ms", 500.0)}
_MEMORY = {
    "workers": ("worker", 100.0), "daemon": ("daemon", None), "all": ("daemon, zygote and workers together", 300.0),
}  # fmt: skip
"""What is measured -> its name, and a target in MiB."""


def measure(run: Run) -> Figures:
    listed = run.listed(8000)
    with running_server(run.scratch, run.workers) as server:
        attach(server, listed, seed=0)  # lists the source
        found = [attach(server, listed, seed) for seed in range(1, 6 if run.smoke else 31)]
        memory = weigh(server, listed)
    starts = [start(run, listed) for _ in range(3)]
    return {"workers": run.workers, "attach": found, "start_s": starts, "memory_mib": memory}


def start(run: Run, listed: Path) -> float:
    """Seconds from the start of a daemon to a client's first batch."""
    began_s = time.monotonic()
    with running_server(run.scratch, run.workers, wait_workers=False) as server:
        attach(server, listed, seed=0)
        return time.monotonic() - began_s


def attach(server: Server, listed: Path, seed: int) -> dict[str, float]:
    """Milliseconds from before there is a client to the iterator, and to the first batch."""
    began_ns = time.monotonic_ns()
    with server.client(listed, seed=seed) as client:
        batches = iter(client)
        iterator_ns = time.monotonic_ns()
        images, _ = next(batches)
        first_ns = time.monotonic_ns()
    assert len(images) == 64
    return {"iterator_ms": (iterator_ns - began_ns) / 1e6, "first_batch_ms": (first_ns - began_ns) / 1e6}


def weigh(server: Server, listed: Path) -> dict[str, list[dict[str, float]]]:
    """Memory of the workers at work, of the daemon, and of all its processes."""
    with server.client(listed) as client:
        for number, _ in enumerate(client):
            if number == 60:
                break
        return {
            "workers": [memory_mib([pid]) for pid in server.worker_pids()],
            "daemon": [memory_mib([server.pid])],
            "all": [memory_mib(tree([server.pid]))],
        }


def sheets(result: Figures) -> list[Sheet]:
    sheet = Sheet(
        f"Attaching, warm listing, {result['workers']} workers, {len(result['attach'])} times",
        ("", "median", "min-max", "target", "reached"),
    )
    for name, (words, target) in _ATTACH.items():
        values = [found[name] for found in result["attach"]]
        middle = statistics.median(values)
        sheet.rows.append((words, f"{middle:.1f}", f"{min(values):.1f}-{max(values):.1f}", *reach(middle, "<", target)))
    starts = [1e3 * found for found in result["start_s"]]
    words = "with `prepserver start` before it, ms"
    sheet.rows.append((words, f"{statistics.median(starts):.0f}", f"{min(starts):.0f}-{max(starts):.0f}", *NO_TARGET))
    memory = Sheet(
        "Memory by smaps_rollup, MiB; own = Pss_Anon + Pss_File, without the ring",
        ("process", "own", "Pss_Anon", "Pss_File", "Pss_Shmem (ring)", "Rss", "target", "reached"),
    )
    for kind, (words, limit) in _MEMORY.items():
        for number, found in enumerate(result["memory_mib"][kind]):
            own = found["Pss_Anon"] + found["Pss_File"]
            memory.rows.append((
                f"{words} {number}" if kind == "workers" else words, f"{own:.0f}",
                *(f"{found[part]:.0f}" for part in ("Pss_Anon", "Pss_File", "Pss_Shmem", "Rss")),
                *(reach(own, "<", limit) if limit else NO_TARGET),
            ))  # fmt: skip
    return [sheet, memory]


CASE = Case("Attaching, and memory of workers", measure, sheets)
