"""How long do the others wait when a worker, a client or the daemon is killed?

Real processes are ended by SIGKILL at random moments. The worst of all tries is compared with the target.

- *A worker.* One job takes batches of 64 photos as fast as they come, so it waits for each. At random a worker is
  killed, twenty times. *Later than usual* is the longest wait for a batch in the second after that, less the median
  wait of the run: the other workers first make the chunks in its hands again, and another worker is forked. This runs
  with all workers, and with a single one, which has no other to help it. A worker that is stopped (SIGSTOP) stands for
  one that hangs: its chunks are made a second time after 2 s. That has no target.
- *A client.* Two clients are on one stream. One of them holds its rows and has `lag="wait"`, so the other one waits for
  it. Then it is killed. The rows themselves tell when a worker began to fill them again (``stamp`` in
  `bench.harness.stand_in`, a millisecond for 16 rows). The kernel reports the end of a process only when it has taken
  down its memory, so the death of a client with many GiB is known later than here.
- *The daemon.* Three jobs run; the daemon is killed and another one is started at once, as systemd would. The time is
  counted from the moment at which it listens (asked every 5 ms) to each job's first batch from it. Batches that the old
  ring still held were handed out before.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.jobs import Job, started
from bench.harness.server import Server, running_server
from bench.harness.tables import NO_TARGET, Sheet, reach

_SAMPLES = 8000
_FEW_SAMPLES = 256  # so few that a job that joins finds a place at once
_TARGETS_MS = {"worker": 300.0, "client": 50.0, "daemon": 3000.0}


@dataclass(frozen=True, slots=True)
class _Plan:
    worker_kills: int
    worker_stops: int
    client_kills: int
    daemon_kills: int


_FULL = _Plan(20, 3, 20, 6)
_SMOKE = _Plan(2, 1, 2, 1)


def measure(run: Run) -> Figures:
    plan = _SMOKE if run.smoke else _FULL
    many, few = run.listed(_SAMPLES), run.listed(_FEW_SAMPLES)
    workers = [
        worker(run, many, run.workers, plan.worker_kills, signal.SIGKILL, 1.0),
        worker(run, many, 1, plan.worker_kills, signal.SIGKILL, 1.0),
        worker(run, many, run.workers, plan.worker_stops, signal.SIGSTOP, 4.0),
    ]
    return {
        "worker_kills": workers, "clients": client(run, few, plan.client_kills),
        "daemons": daemon(run, many, 3, plan.daemon_kills),
    }  # fmt: skip


# -- a worker ---------------------------------------------------------------------------------------------------------


def worker(run: Run, listed: Path, workers: int, times: int, number: signal.Signals, window_s: float) -> Any:
    """One job waits for every batch; a worker is killed or stopped, again and again.

    Returns:
        ``usual_ms``: the median wait for a batch. ``late_ms``: for each kill, the longest wait in the `window_s` after
        it, less the usual one. ``back_ms``: until another process has the worker's place.
    """
    chance = random.Random(1)
    struck_ns: list[int] = []
    back_ms: list[float] = []
    with running_server(run.scratch, workers) as server, started([run.job("prepserver", listed)]) as jobs:
        jobs.go()
        time.sleep(1.0)
        for _ in range(times):
            before = _all_workers(server, workers)
            victim = chance.choice(before)
            struck_ns.append(time.monotonic_ns())
            os.kill(victim, number)
            until_ns = struck_ns[-1] + int(window_s * 1e9)
            while set(now := server.workers_now()) <= set(before) or len(now) < workers:
                if time.monotonic_ns() > until_ns + int(30e9):
                    raise SystemExit(f"no worker has come in the place of {victim}")
                time.sleep(0.001)
            back_ms.append((time.monotonic_ns() - struck_ns[-1]) / 1e6)
            time.sleep(max(0.0, (until_ns - time.monotonic_ns()) / 1e9) + chance.uniform(0.2, 0.5))
        (record,) = jobs.stop()
    waits = [(came, (came - asked) / 1e6) for asked, came in zip(record["asked_ns"], record["came_ns"], strict=True)]
    usual_ms = statistics.median(wait for _, wait in waits)
    late_ms = [
        max(wait for came, wait in waits if struck < came and came - wait * 1e6 < struck + window_s * 1e9) - usual_ms
        for struck in struck_ns
    ]
    what = "killed" if number == signal.SIGKILL else "stopped"
    return {"what": what, "workers": workers, "usual_ms": usual_ms, "late_ms": late_ms, "back_ms": back_ms}


def _all_workers(server: Server, workers: int) -> list[int]:
    until_s = time.monotonic() + 60.0
    while len(found := server.workers_now()) != workers:
        if time.monotonic() > until_s:
            raise SystemExit(f"{len(found)} workers of {workers} are up")
        time.sleep(0.01)
    return found


# -- a client ---------------------------------------------------------------------------------------------------------


def client(run: Run, listed: Path, times: int) -> dict[str, list[float]]:
    """One client waits for another one, which holds rows and is killed.

    Returns:
        ``reused_ms``: from the kill to the first worker that begins to fill a row again. ``batch_ms``: to the batch
        in the hands of the client that waited.
    """
    found: dict[str, list[float]] = {"reused_ms": [], "batch_ms": []}
    config = run.job("prepserver", listed, lag="wait", holds_after=2, join_wait_s=1e6)
    with (
        running_server(run.scratch, run.workers, fill="stamp", sample_s=0.001 / 16) as server,
        server.client(listed, zero_copy=True, fields="dict") as other,
        _holders(config, times) as holders,
    ):
        batches = itertools.chain.from_iterable(itertools.repeat(other))
        next(batches)
        for job in holders:
            killing = _Killing(job)
            killing.start()
            while True:
                asked_ns = time.monotonic_ns()
                fields: Any = next(batches)
                in_hand_ns = time.monotonic_ns()
                struck_ns = killing.struck_ns
                if struck_ns and in_hand_ns > struck_ns:
                    break
            killing.join()
            if asked_ns > struck_ns - 1e8:
                raise SystemExit("nobody waited for the client that was killed: nothing was measured")
            begun_ns = min(ns for ns in fields["index"].tolist() if ns > struck_ns)
            found["reused_ms"].append((begun_ns - struck_ns) / 1e6)
            found["batch_ms"].append((in_hand_ns - struck_ns) / 1e6)
    return found


class _Killing(threading.Thread):
    """Lets a job take its batches, waits until all wait for it, and kills it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self.struck_ns = 0

    def run(self) -> None:
        self._job.say("go")
        self._job.hear("first")
        time.sleep(1.0)
        self.struck_ns = time.monotonic_ns()
        self._job.kill()


@contextlib.contextmanager
def _holders(config: dict[str, Any], count: int) -> Iterator[list[Job]]:
    """Jobs that have imported everything, started four at a time."""
    jobs: list[Job] = []
    try:
        for first in range(0, count, 4):
            jobs += [Job(config) for _ in range(first, min(first + 4, count))]
            for job in jobs[first:]:
                job.hear("ready")
        yield jobs
    finally:
        for job in jobs:
            job.end()


# -- the daemon -------------------------------------------------------------------------------------------------------


def daemon(run: Run, listed: Path, clients: int, times: int) -> dict[str, Any]:
    """Some jobs run; the daemon is killed and started again, as by systemd.

    Returns:
        For each kill and client: ``ready_ms``, from the new daemon's listening to the first batch from it;
        ``pause_ms``, from the kill to that batch. For each kill: ``start_ms``, from the kill to listening.
    """
    found: dict[str, list[float]] = {"ready_ms": [], "pause_ms": [], "start_ms": []}
    with contextlib.ExitStack() as daemons:
        server = daemons.enter_context(running_server(run.scratch, run.workers))
        with started([run.job("prepserver", listed)] * clients) as jobs:
            jobs.go()
            moments: list[tuple[int, int]] = []
            for _ in range(times):
                time.sleep(1.5)
                struck_ns = time.monotonic_ns()
                _kill_and_wait(server.pid)
                server = daemons.enter_context(running_server(run.scratch, run.workers))
                moments.append((struck_ns, server.ready_ns))
                time.sleep(4.0)
            records = jobs.stop()
    for struck_ns, ready_ns in moments:
        found["start_ms"].append((ready_ns - struck_ns) / 1e6)
        for record in records:
            # what the old ring still held was handed out before
            came_ns = next(came for came in record["came_ns"] if came > ready_ns)
            found["ready_ms"].append((came_ns - ready_ns) / 1e6)
            found["pause_ms"].append((came_ns - struck_ns) / 1e6)
    return {"clients": clients, **found}


def _kill_and_wait(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([pidfd], [], [])  # until then it may still accept connections
    os.close(pidfd)


# -- the report -------------------------------------------------------------------------------------------------------


def sheets(result: Figures) -> list[Sheet]:
    sheet = Sheet("After a kill -9, ms", ("", "times", "p50", "max", "target", "reached by the worst"))
    for found in result["worker_kills"]:
        words = f"worker {found['what']}, {found['workers']} in all: next batch later than usual"
        target = _TARGETS_MS["worker"] if found["what"] == "killed" else None
        _add(sheet, f"{words} ({found['usual_ms']:.0f} ms)", found["late_ms"], target)
        _add(sheet, "... and another one is forked in its place after", found["back_ms"])
    clients = result["clients"]
    _add(sheet, "client killed: a worker begins to fill its rows after", clients["reused_ms"], _TARGETS_MS["client"])
    _add(sheet, "... and a client that waited for it has its batch after", clients["batch_ms"])
    daemons = result["daemons"]
    words = f"daemon killed and started: first batch, each of {daemons['clients']} clients, after it listens"
    _add(sheet, words, daemons["ready_ms"], _TARGETS_MS["daemon"])
    _add(sheet, "... it listens after (started at once)", daemons["start_ms"])
    _add(sheet, "... the whole pause", daemons["pause_ms"])
    return [sheet]


def _add(sheet: Sheet, words: str, values: list[float], target_ms: float | None = None) -> None:
    reached = NO_TARGET if target_ms is None else reach(max(values), "<", target_ms)
    sheet.rows.append((words, str(len(values)), f"{statistics.median(values):.1f}", f"{max(values):.1f}", *reached))


CASE = Case("Recovery after a kill", measure, sheets)
