"""How many workers and clients can one daemon serve, and where is its own limit?

The real daemon, up to 128 worker processes, up to 64 client processes. One client takes what 1 and 2 workers decode;
then workers sleep for 1 ms per row in place of decoding (`bench.harness.stand_in`), so that 128 of them fit two cores,
and rows have 8x8 pixels, so that memory does not count. The clients are ranks of one job, or separate jobs on one
stream (so each gets all rows), or have a stream each.

128 workers and 64 clients cost CPU for each wake-up, and two cores are soon full. So the sum of images/s says what this
machine can do. What the daemon can do follows from its own user and system time: divided by the chunks made, it is the
*cost of a chunk*, with its task, its answer, and its share of the announcements and releases; the rows made per second
of that time are the *limit* on a core of its own. In the last line the workers do nothing: the daemon itself
is the bottleneck there, and the limit can be compared with what it does.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.proc import cpu_s, machine_busy_s
from bench.harness.server import Server, running_server
from bench.harness.tables import Sheet, reach, spread

_SAMPLE_S = 0.001
_TARGET_PER_S = 128 / _SAMPLE_S  # 128 workers with 1000 images/s each
_SOURCE_ROWS = 1 << 24
_BATCH = 256
_FIRST_S = 120.0


@dataclass(frozen=True, slots=True)
class _Cell:
    """What is measured.

    Attributes:
        kind: Workers ``decode`` photos, ``sleep`` for a millisecond per row, or do ``nothing``.
        workers: Their number.
        clients: Their number.
        share: ``ranks`` of one job, ``jobs`` that share one stream, or ``streams`` of their own.
    """

    kind: str
    workers: int
    clients: int
    share: str


_FULL = [
    *(_Cell("decode", workers, 1, "jobs") for workers in (1, 2)),
    *(_Cell("sleep", workers, 1, "jobs") for workers in (1, 2, 4, 8, 16, 32, 64, 128)),
    *(_Cell("sleep", 128, clients, share) for clients in (8, 64) for share in ("ranks", "jobs", "streams")),
    _Cell("nothing", 2, 1, "jobs"),
]
_SMOKE = [_Cell("decode", 1, 1, "jobs"), _Cell("sleep", 8, 4, "ranks"), _Cell("sleep", 8, 4, "streams")]


def measure(run: Run) -> Figures:
    import torch

    import prepclient  # once, for all the clients that are forked from here

    del prepclient
    torch.set_num_threads(1)
    listed = run.listed(1 << 14)
    cells = _SMOKE if run.smoke else _FULL
    rounds = [[{**asdict(cell), **scale(cell, run, listed)} for cell in cells] for _ in range(run.rounds(3))]
    return {"rounds": rounds}


def scale(cell: _Cell, run: Run, listed: Path) -> dict[str, Any]:
    """One cell, with a daemon of its own.

    Returns:
        ``images_per_s`` in sum; ``chunks_per_s`` and ``messages_per_s``; of the daemon's process by its user and system
        time ``daemon_cores``, ``daemon_us_a_chunk``, and ``limit_per_s``: the rows that it could have made on a core
        of its own; ``busy_cores`` of the machine.
    """
    window_s, fill = 1.0 if run.smoke else 4.0, None if cell.kind == "decode" else cell.kind
    with (
        running_server(run.scratch, cell.workers, fill=fill, sample_s=_SAMPLE_S) as server,
        clients(cell, server, listed) as batches,
    ):
        time.sleep(window_s / 2)
        before = _look(server, batches)
        time.sleep(window_s)
        after = _look(server, batches)
    daemon_s, busy_s, elapsed_s, taken, chunks, rows = (b - a for a, b in zip(before, after, strict=True))
    return {
        "images_per_s": taken * _BATCH / elapsed_s,
        "daemon_cores": daemon_s / elapsed_s,
        "busy_cores": busy_s / elapsed_s,
        "chunks_per_s": chunks / elapsed_s,
        # a task and its answer for each chunk, an announcement and a release for each batch
        "messages_per_s": 2 * (chunks + taken) / elapsed_s,
        "daemon_us_a_chunk": daemon_s / chunks * 1e6,
        "limit_per_s": rows / daemon_s,
    }


def _look(server: Server, batches: memoryview) -> tuple[float, float, float, int, int, int]:
    """CPU seconds of the daemon and the machine, the time, batches of all clients, chunks and rows that were made."""
    workers = server.status()["workers"]
    made = sum(worker["chunks"] for worker in workers), sum(worker["rows"] for worker in workers)
    return cpu_s([server.pid]), machine_busy_s(), time.monotonic(), sum(batches), *made


@contextlib.contextmanager
def clients(cell: _Cell, server: Server, listed: Path) -> Iterator[memoryview]:
    """Client processes, each with a `PrepClient`; how many batches each has taken so far.

    They are forked from here, where torch is imported already: 64 processes that import it by themselves would take a
    minute and 8 GB. Nothing of libzmq's exists before the fork.
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


def _client(cell: _Cell, server: Server, listed: Path, number: int, counts: memoryview) -> None:
    """A client's life, until it is killed; never returns."""
    try:
        from prepclient import RandomResizedCrop, Sharding, SyntheticImages

        decodes = cell.kind == "decode"
        shares: dict[str, dict[str, Any]] = {
            "jobs": {}, "streams": {"seed": number},
            "ranks": {"job": "bench", "sharding": Sharding(number, cell.clients)},
        }  # fmt: skip
        client = server.client(
            listed if decodes else SyntheticImages(_SOURCE_ROWS), [RandomResizedCrop(224 if decodes else 8)],
            batch_size=_BATCH, drop_last=True, **shares[cell.share],
        )  # fmt: skip
        while True:
            for _ in client:
                counts[number] += 1
    except BaseException as e:  # noqa: BLE001 - a forked child must not go on in its parent's code
        print(f"client {number}: {type(e).__name__}: {e}", flush=True)
    finally:
        os._exit(1)


def sheets(result: Figures) -> list[Sheet]:
    words = {"decode": "decode photos", "sleep": "sleep 1 ms per row", "nothing": "do nothing"}
    shares = {"jobs": "one stream", "ranks": "ranks of one job", "streams": "a stream each"}
    sheet = Sheet(
        f"Workers and clients; target with 128 workers: a limit of {_TARGET_PER_S:.0f} rows/s",
        (
            *("workers", "work", "clients", "share", "images/s in sum", "chunks/s", "messages/s", "daemon, cores"),
            *("machine, cores", "daemon, us per chunk", "limit, chunks/s", "limit, rows/s", "reached"),
        ),
    )
    for same in zip(*result["rounds"], strict=True):
        cell, limits = same[0], [c["limit_per_s"] for c in same]
        reached = reach(statistics.median(limits), ">=", _TARGET_PER_S)[1] if cell["workers"] >= 128 else "-"
        sheet.rows.append((
            str(cell["workers"]), words[cell["kind"]], str(cell["clients"]), shares[cell["share"]],
            spread([c["images_per_s"] for c in same]), spread([c["chunks_per_s"] for c in same]),
            spread([c["messages_per_s"] for c in same]), spread([c["daemon_cores"] for c in same], ".2f"),
            spread([c["busy_cores"] for c in same], ".1f"), spread([c["daemon_us_a_chunk"] for c in same]),
            spread([1e6 / c["daemon_us_a_chunk"] for c in same]), spread(limits), reached,
        ))  # fmt: skip
    return [sheet]


CASE = Case("Workers, clients, and the daemon's own limit", measure, sheets)
