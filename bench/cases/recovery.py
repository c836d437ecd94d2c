"""What a killed process costs those that live: a worker, a client, the daemon.

``python bench/recovery.py [--smoke] [--markdown]``. Real processes, killed with SIGKILL; see README.md for the method.
Writes ``bench/out/recovery.json``.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from jobs import Job, started
from photos import find_photos, write_list
from server import Server, running_server
from tables import Sheet, reached

_SAMPLES = 8000
_FEW_SAMPLES = 256  # where a joiner shall find a place at once
_BATCH = 64
_STAMPED = (str(Path(__file__).with_name("stamped_daemon.py")),)
_TARGETS = {"worker": 300.0, "client": 50.0, "daemon": 3000.0}


@dataclass(frozen=True, slots=True)
class Plan:
    """How often."""

    worker_kills: int
    worker_stops: int
    client_kills: int
    daemon_kills: int


FULL = Plan(20, 3, 20, 6)
SMOKE = Plan(2, 1, 2, 1)


def main() -> None:
    command.run(
        "recovery", "Recovery from killed processes.",
        lambda arguments: measure(arguments.data, arguments.workers, SMOKE if arguments.smoke else FULL),
        sheets,
    )  # fmt: skip


def measure(data: str | None, workers: int, plan: Plan) -> dict[str, Any]:
    machine = fingerprint()
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        photos = find_photos(data, scratch)
        many, few = scratch / "many.txt", scratch / "few.txt"
        write_list(photos, _SAMPLES, many)
        write_list(photos, _FEW_SAMPLES, few)
        found = [
            worker(scratch, many, workers, plan.worker_kills, signal.SIGKILL, 1.0),
            worker(scratch, many, 1, plan.worker_kills, signal.SIGKILL, 1.0),
            worker(scratch, many, workers, plan.worker_stops, signal.SIGSTOP, 4.0),
        ]
        clients = client(scratch, few, workers, plan.client_kills)
        daemons = daemon(scratch, many, workers, 3, plan.daemon_kills)
    return {"machine": machine, "workers": found, "clients": clients, "daemons": daemons}


# -- a worker ---------------------------------------------------------------------------------------------------------


def worker(scratch: Path, listed: Path, workers: int, times: int, number: signal.Signals, window_s: float) -> Any:
    """One job that waits for every batch; a worker is killed or stopped, again and again.

    Returns:
        ``usual_ms``: the median wait for a batch. ``late_ms``: for each kill, the longest wait in the `window_s` after
        it, less the usual one. ``back_ms``: until another process has the worker's place.
    """
    chance = random.Random(1)
    struck_ns: list[int] = []
    back_ms: list[float] = []
    with running_server(scratch, workers) as server, started([_config(server, listed)]) as jobs:
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


def client(scratch: Path, listed: Path, workers: int, times: int) -> dict[str, Any]:
    """One client waits for another one, which holds rows and is killed.

    The daemon is the stamped one (see `stamped_worker.py`), a pause of a millisecond in place of filling 16 rows:
    a row's index says when a worker began with it.

    Returns:
        ``reused_ms``: from the kill to the first worker that begins to fill a row again. ``batch_ms``: to the batch
        in the hands of the client that waited.
    """
    from prepclient import FileList, PrepClient, RandomHorizontalFlip, RandomResizedCrop

    os.environ["BENCH_PAUSE_S"] = "0.001"
    reused_ms: list[float] = []
    batch_ms: list[float] = []
    with running_server(scratch, workers, _STAMPED) as server:
        config = {**_config(server, listed), "lag": "wait", "holds_after": 2, "join_wait_s": 1e6}
        with (
            PrepClient(
                FileList(listed), [RandomResizedCrop(224), RandomHorizontalFlip()], batch_size=_BATCH, shuffle=True,
                runtime_dir=server.runtime_dir, zero_copy=True, fields="dict",
            ) as other,
            _holders(config, times) as holders,
        ):  # fmt: skip
            batches = _endless(other)
            next(batches)
            for job in holders:
                killing = _Killing(job)
                killing.start()
                while True:
                    asked_ns = time.monotonic_ns()
                    fields = next(batches)
                    in_hand_ns = time.monotonic_ns()
                    struck_ns = killing.struck_ns
                    if struck_ns and in_hand_ns > struck_ns:
                        break
                killing.join()
                if asked_ns > struck_ns - 1e8:
                    raise SystemExit("nobody waited for the client that was killed: nothing was measured")
                begun_ns = min(ns for ns in fields["index"].tolist() if ns > struck_ns)
                reused_ms.append((begun_ns - struck_ns) / 1e6)
                batch_ms.append((in_hand_ns - struck_ns) / 1e6)
    return {"reused_ms": reused_ms, "batch_ms": batch_ms}


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
        os.kill(self._job.pid, signal.SIGKILL)


@contextlib.contextmanager
def _holders(config: dict[str, Any], count: int) -> Iterator[list[Job]]:
    """Jobs that have everything imported, four at a time."""
    jobs: list[Job] = []
    try:
        for _ in range(count):
            jobs.append(Job(config))
            if len(jobs) % 4 == 0 or len(jobs) == count:
                for job in jobs[(len(jobs) - 1) // 4 * 4 :]:
                    job.hear("ready")
        yield jobs
    finally:
        for job in jobs:
            job.end()


def _endless(client: Any) -> Iterator[Any]:
    while True:
        yield from client


# -- the daemon -------------------------------------------------------------------------------------------------------


def daemon(scratch: Path, listed: Path, workers: int, clients: int, times: int) -> dict[str, Any]:
    """Some jobs; the daemon is killed and started again by somebody, as systemd does.

    Returns:
        For each kill and client: ``ready_ms``, from the new daemon's listening to the first batch from it;
        ``pause_ms``, from the kill to that batch. For each kill: ``start_ms``, from the kill to listening.
    """
    found: dict[str, list[float]] = {"ready_ms": [], "pause_ms": [], "start_ms": []}
    with contextlib.ExitStack() as daemons:
        server = daemons.enter_context(running_server(scratch, workers))
        with started([_config(server, listed)] * clients) as jobs:
            jobs.go()
            moments: list[tuple[int, int]] = []
            for _ in range(times):
                time.sleep(1.5)
                struck_ns = time.monotonic_ns()
                _kill_and_wait(server.pid)
                server = daemons.enter_context(running_server(scratch, workers))
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
    select.select([pidfd], [], [])  # until then it may still be connected to
    os.close(pidfd)


# -- the report -------------------------------------------------------------------------------------------------------


def sheets(result: dict[str, Any]) -> list[Sheet]:
    sheet = Sheet("After a kill -9, ms", ("", "times", "p50", "max", "to reach", "reached by the worst"))
    for found in result["workers"]:
        words = f"worker {found['what']}, {found['workers']} in all: next batch later than usual"
        target = _TARGETS["worker"] if found["what"] == "killed" else None
        _add(sheet, f"{words} ({found['usual_ms']:.0f} ms)", found["late_ms"], target)
        _add(sheet, "... and another one is forked in its place after", found["back_ms"], None)
    clients = result["clients"]
    _add(sheet, "client killed: a worker begins to fill its rows after", clients["reused_ms"], _TARGETS["client"])
    _add(sheet, "... and a client that waited for it has its batch after", clients["batch_ms"], None)
    daemons = result["daemons"]
    words = f"daemon killed and started: first batch, each of {daemons['clients']} clients, after it listens"
    _add(sheet, words, daemons["ready_ms"], _TARGETS["daemon"])
    _add(sheet, "... it listens after (started at once)", daemons["start_ms"], None)
    _add(sheet, "... the whole pause", daemons["pause_ms"], None)
    return [sheet]


def _add(sheet: Sheet, words: str, values: list[float], target: float | None) -> None:
    wanted = ("-", "-") if target is None else (f"< {target:g}", reached(max(values), target))
    sheet.rows.append((
        words, str(len(values)), f"{statistics.median(values):.1f}", f"{max(values):.1f}", *wanted
    ))  # fmt: skip


def _config(server: Server, listed: Path) -> dict[str, Any]:
    return {
        "contender": "prepserver", "list": str(listed), "batch": _BATCH, "seed": 0,
        "runtime_dir": str(server.runtime_dir),
    }  # fmt: skip


if __name__ == "__main__":
    main()
