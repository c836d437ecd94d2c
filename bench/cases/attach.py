"""Attaching to a running server, and what its workers weigh.

``python bench/attach.py [--smoke] [--markdown]``. Writes ``bench/out/attach.json``.

A process with everything imported makes a client of a server that runs and has listed the source before, takes
the iterator and the first batch of 64, and closes; again and again. Each time the stream is new (another seed),
so the server lays out a ring and its workers decode those 64 photos: nothing is ready beforehand. Then a server is
started some times for a first batch, which includes its start, the import of torch in its zygote, and the listing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from photos import find_photos, write_list
from proc import memory_mib, tree
from server import Server, running_server
from tables import Sheet

_TARGETS = {"iterator_ms": 100.0, "first_batch_ms": 500.0, "worker_own_mib": 100.0, "server_own_mib": 300.0}
_STARTS = 3


def main() -> None:
    command.run(
        "attach", "Attach times and worker memory.",
        lambda arguments: measure(arguments.data, arguments.workers, 5 if arguments.smoke else 30),
        sheets,
    )  # fmt: skip


def measure(data: str | None, workers: int, times: int) -> dict[str, Any]:
    machine = fingerprint()
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        listed = scratch / "list.txt"
        write_list(find_photos(data, scratch), 8000, listed)
        with running_server(scratch, workers) as server:
            attach(server, listed, seed=0)  # lists the source
            found = [attach(server, listed, seed) for seed in range(1, times + 1)]
            weights = weigh(server, listed)
        starts = [start(scratch, workers, listed) for _ in range(min(times, _STARTS))]
    return {"machine": machine, "workers": workers, "attach": found, "start_s": starts, "memory_mib": weights}


def start(scratch: Path, workers: int, listed: Path) -> float:
    """Seconds from `prepserver start` to a client's first batch; the listing is in the cache."""
    began_s = time.monotonic()
    with running_server(scratch, workers, wait_workers=False) as server:
        attach(server, listed, seed=0)
        return time.monotonic() - began_s


def attach(server: Server, listed: Path, seed: int) -> dict[str, float]:
    """Milliseconds from nothing to the iterator, and to the first batch."""
    from prepclient import FileList, PrepClient, RandomHorizontalFlip, RandomResizedCrop

    began_ns = time.monotonic_ns()
    with PrepClient(
        FileList(listed), [RandomResizedCrop(224), RandomHorizontalFlip()], batch_size=64, shuffle=True, seed=seed,
        runtime_dir=server.runtime_dir,
    ) as client:  # fmt: skip
        batches = iter(client)
        iterator_ns = time.monotonic_ns()
        images, _ = next(batches)
        first_ns = time.monotonic_ns()
    assert len(images) == 64
    return {"iterator_ms": (iterator_ns - began_ns) / 1e6, "first_batch_ms": (first_ns - began_ns) / 1e6}


def weigh(server: Server, listed: Path) -> dict[str, list[dict[str, float]]]:
    """smaps_rollup of the workers at work and of the daemon, MiB."""
    from prepclient import FileList, PrepClient, RandomHorizontalFlip, RandomResizedCrop

    with PrepClient(
        FileList(listed), [RandomResizedCrop(224), RandomHorizontalFlip()], batch_size=64, shuffle=True,
        runtime_dir=server.runtime_dir,
    ) as client:  # fmt: skip
        for number, _ in enumerate(client):
            if number == 60:
                break
        return {
            "workers": [memory_mib([pid]) for pid in server.worker_pids()],
            "daemon": [memory_mib([server.pid])],
            "all": [memory_mib(tree([server.pid]))],
        }


def own_mib(found: dict[str, float]) -> float:
    """PSS without the ring, which is counted once for everybody."""
    return found["Pss_Anon"] + found["Pss_File"]


def sheets(result: dict[str, Any]) -> list[Sheet]:
    sheet = Sheet(
        f"Attaching, warm listing, {result['workers']} workers, {len(result['attach'])} times",
        ("", "median", "min-max", "to reach", "reached"),
    )
    for name, words in (("iterator_ms", "to the iterator, ms"), ("first_batch_ms", "to the first batch of 64, ms")):
        values = [a[name] for a in result["attach"]]
        sheet.rows.append((
            words, f"{statistics.median(values):.1f}", f"{min(values):.1f}-{max(values):.1f}", f"< {_TARGETS[name]:g}",
            "yes" if statistics.median(values) < _TARGETS[name] else "no",
        ))  # fmt: skip
    sheet.rows.append((
        "with `prepserver start` before it, ms", f"{statistics.median(result['start_s']) * 1e3:.0f}",
        f"{min(result['start_s']) * 1e3:.0f}-{max(result['start_s']) * 1e3:.0f}", "-", "-",
    ))  # fmt: skip
    memory = Sheet(
        "Memory by smaps_rollup, MiB; own = Pss_Anon + Pss_File, the ring apart",
        ("process", "own", "Pss_Anon", "Pss_File", "Pss_Shmem (ring)", "Rss", "to reach", "reached"),
    )
    limits = {"workers": _TARGETS["worker_own_mib"], "all": _TARGETS["server_own_mib"]}
    for kind, words in (("workers", "worker"), ("daemon", "daemon"), ("all", "daemon, zygote and workers together")):
        for number, found in enumerate(result["memory_mib"][kind]):
            memory.rows.append((
                f"{words} {number}" if kind == "workers" else words,
                f"{own_mib(found):.0f}",
                *(f"{found[part]:.0f}" for part in ("Pss_Anon", "Pss_File", "Pss_Shmem", "Rss")),
                f"< {limits[kind]:g}" if kind in limits else "-",
                "-" if kind not in limits else "yes" if own_mib(found) < limits[kind] else "no",
            ))  # fmt: skip
    return [sheet, memory]


if __name__ == "__main__":
    main()
