"""How many workers and clients one daemon can serve, and where its own limit is.

``python bench/scaling.py [--smoke] [--markdown]``. Writes ``bench/out/scaling.json``. The real daemon, real worker
processes, real client processes. Beyond two workers there is no machine for them here, so a worker sleeps for a
millisecond in place of decoding a sample (`idle_worker.py`), and rows are tiny. README.md has the method.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from photos import find_photos, write_list
from proc import cpu_s, machine_busy_s, memory_mib
from server import Server, running_server
from tables import Sheet, spread

_COMMAND = (str(Path(__file__).with_name("stamped_daemon.py")),)
_SAMPLE_S = 0.001
_TARGET_PER_S = 128 / _SAMPLE_S  # 128 workers with 1000 images/s each
_SOURCE_ROWS = 1 << 24
_FIRST_S = 120.0


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured.

    Attributes:
        kind: ``decode`` photos, ``sleep`` for a millisecond a row, or leave rows as they are (``nothing``).
        workers: How many.
        clients: How many.
        share: ``ranks`` of one job, ``jobs`` that share one stream, or ``streams`` of their own.
        batch: Rows in a batch of one client.
    """

    kind: str
    workers: int
    clients: int
    share: str
    batch: int = 256


_FULL = [
    *(Cell("decode", workers, 1, "jobs") for workers in (1, 2)),
    *(Cell("sleep", workers, 1, "jobs") for workers in (1, 2, 4, 8, 16, 32, 64, 128)),
    *(Cell("sleep", 128, clients, share) for clients in (8, 64) for share in ("ranks", "jobs", "streams")),
    Cell("nothing", 2, 1, "jobs"),
]
_SMOKE = [Cell("decode", 1, 1, "jobs"), Cell("sleep", 8, 4, "ranks"), Cell("sleep", 8, 4, "streams")]


def main() -> None:
    command.run(
        "scaling", "Workers, clients, and the daemon's own limit.",
        lambda arguments: measure(arguments.data, *((_SMOKE, 1, 1.0) if arguments.smoke else (_FULL, 3, 4.0))),
        sheets, takes_workers=False,
    )  # fmt: skip


def measure(data: str | None, cells: list[Cell], rounds: int, window_s: float) -> dict[str, Any]:
    import torch

    import prepclient  # once, for all the clients that are forked from here

    del prepclient
    torch.set_num_threads(1)
    machine = fingerprint()
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        listed = scratch / "list.txt"
        write_list(find_photos(data, scratch), 1 << 14, listed)
        found = [
            [{**asdict(cell), **run(cell, scratch, listed, window_s)} for cell in cells]  # each in each round
            for _ in range(rounds)
        ]
    return {"machine": machine, "cells": found}


def run(cell: Cell, scratch: Path, listed: Path, window_s: float) -> dict[str, Any]:
    """One cell, with a daemon of its own.

    Returns:
        ``images_per_s`` in sum; ``chunks_per_s`` and ``messages_per_s``; of the daemon process by its user and system
        time: ``daemon_cores``, ``daemon_us_a_chunk``, and ``limit_per_s``: the rows that it could have made on a core
        of its own; ``busy_cores`` of the machine; ``worker_mib``: PSS of one worker, without the ring.
    """
    command = _COMMAND
    if cell.kind == "decode":
        command = ("-m", "prepserver.cli")
    os.environ |= {"BENCH_WORKER": "idle_worker.py", "BENCH_FILL": cell.kind, "BENCH_SAMPLE_S": str(_SAMPLE_S)}
    with running_server(scratch, cell.workers, command) as server, clients(cell, server, listed) as batches:
        time.sleep(window_s / 2)
        before = _look(server, batches)
        time.sleep(window_s)
        after = _look(server, batches)
        one = memory_mib(server.worker_pids()[:1])
    daemon_s, busy_s, elapsed_s, taken, chunks, rows = (b - a for a, b in zip(before, after, strict=True))
    return {
        "images_per_s": taken * cell.batch / elapsed_s,
        "daemon_cores": daemon_s / elapsed_s,
        "busy_cores": busy_s / elapsed_s,
        "chunks_per_s": chunks / elapsed_s,
        # a task and its answer for each chunk, an announcement and a release for each batch
        "messages_per_s": 2 * (chunks + taken) / elapsed_s,
        "daemon_us_a_chunk": daemon_s / chunks * 1e6,
        "limit_per_s": rows / daemon_s,
        "worker_mib": one["Pss_Anon"] + one["Pss_File"],
    }


def _look(server: Server, batches: memoryview) -> tuple[float, float, float, int, int, int]:
    """CPU seconds of the daemon and the machine, the time, batches of all clients, chunks and rows that were made."""
    workers = server.status()["workers"]
    made = sum(worker["chunks"] for worker in workers), sum(worker["rows"] for worker in workers)
    return cpu_s([server.pid]), machine_busy_s(), time.monotonic(), sum(batches), *made


@contextlib.contextmanager
def clients(cell: Cell, server: Server, listed: Path) -> Iterator[memoryview]:
    """Client processes, each with a `PrepClient`; how many batches each has taken so far.

    Forked from here, where torch is imported already: 64 processes that import it by themselves would take a minute
    and 8 GB. Nothing of libzmq's exists before the fork.
    """
    shared = mmap.mmap(-1, 8 * cell.clients)
    counts = memoryview(shared).cast("q")
    pids = []
    try:
        for number in range(cell.clients):
            pid = os.fork()
            if pid == 0:
                _client(cell, server, listed, number, counts)
            pids.append(pid)
        deadline_s = time.monotonic() + _FIRST_S
        while not all(counts):
            ended, _ = os.waitpid(-1, os.WNOHANG)
            if ended in pids or time.monotonic() > deadline_s:
                raise SystemExit(f"a client ended or got no batch within {_FIRST_S:g} s: {cell}")
            time.sleep(0.05)
        yield counts
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _client(cell: Cell, server: Server, listed: Path, number: int, counts: memoryview) -> None:
    """A client's life, until it is killed; never returns."""
    try:
        from prepclient import FileList, PrepClient, RandomResizedCrop, SyntheticImages

        decodes = cell.kind == "decode"
        is_rank = cell.share == "ranks"
        client = PrepClient(
            FileList(listed) if decodes else SyntheticImages(_SOURCE_ROWS),
            [RandomResizedCrop(224 if decodes else 8)], batch_size=cell.batch, shuffle=True, drop_last=True,
            seed=number if cell.share == "streams" else 0, runtime_dir=server.runtime_dir,
            rank=number if is_rank else 0, world_size=cell.clients if is_rank else 1, job="bench" if is_rank else None,
        )  # fmt: skip
        while True:
            for _ in client:
                counts[number] += 1
    except BaseException as e:  # noqa: BLE001 - a forked child must not go on in its parent's code
        print(f"client {number}: {type(e).__name__}: {e}", flush=True)
    finally:
        os._exit(1)


def sheets(result: dict[str, Any]) -> list[Sheet]:
    words = {"decode": "decode photos", "sleep": "sleep 1 ms a row", "nothing": "do nothing"}
    shares = {"jobs": "one stream", "ranks": "ranks of one job", "streams": "a stream each"}
    sheet = Sheet(
        f"Workers and clients; to reach with 128 workers: a limit of {_TARGET_PER_S:.0f} rows/s",
        (
            *("workers", "that", "clients", "on", "images/s in sum", "chunks/s", "messages/s", "daemon, cores"),
            *("machine, cores", "daemon, us a chunk", "its limit, chunks/s", "its limit, rows/s", "reached"),
        ),
    )
    for number, cell in enumerate(result["cells"][0]):
        same = [cells[number] for cells in result["cells"]]
        limits = [c["limit_per_s"] for c in same]
        many = cell["workers"] >= 128
        sheet.rows.append((
            str(cell["workers"]), words[cell["kind"]], str(cell["clients"]), shares[cell["share"]],
            spread([c["images_per_s"] for c in same]), spread([c["chunks_per_s"] for c in same]),
            spread([c["messages_per_s"] for c in same]), spread([c["daemon_cores"] for c in same], ".2f"),
            spread([c["busy_cores"] for c in same], ".1f"), spread([c["daemon_us_a_chunk"] for c in same]),
            spread([1e6 / c["daemon_us_a_chunk"] for c in same]), spread(limits),
            ("yes" if statistics.median(limits) >= _TARGET_PER_S else "no") if many else "-",
        ))  # fmt: skip
    return [sheet]


if __name__ == "__main__":
    main()
