"""Random kills and stops of everything, while jobs of mixed policies come and go: no row may differ.

``make chaos`` runs the long one; PREPSERVER_CHAOS_S sets its seconds, PREPSERVER_CHAOS_SEED repeats one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prepclient import PrepClient
from tests.support import chaos_job, leaks
from tests.support.chaos_job import SAMPLES, extend, make
from tests.support.server import Server, environment
from tests.support.waiting import PATIENCE_S, wait_until

POLICIES = ("auto", "wait", "detach")
WORKERS = 2
KILLS_PER_S = 1 / 3  # so ten minutes are 200 at least
EVENTS = {
    "kill worker": 8, "kill client": 4, "kill daemon": 1, "kill zygote": 1,
    "stop worker": 2, "stop client": 2, "stop daemon": 1, "leave": 2,
}  # fmt: skip
"""What may happen next, with its weight."""

KEPT_MOST_BYTES = 32 << 20  # counters and allocator pages of the daemon; of a ring or a client it keeps nothing


class Job:
    """One job, restarted from its checkpoint whenever it was killed."""

    def __init__(self, home: Path, number: int, runtime_dir: Path, policy: str, options: dict[str, Any]) -> None:
        self.path = home / f"job{number}"
        self.policy = policy
        self.options = options
        served = {"runtime_dir": str(runtime_dir), "lag": policy, "job": f"job{number}", "timeout_s": 600.0}
        self.arguments = [str(self.path), json.dumps({**self.options, **served})]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The latest."""
        assert self._process is not None
        return self._process

    def run(self) -> None:
        with self.path.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, chaos_job.__file__, *self.arguments],
                env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self) -> None:
        # an end of its own is an error: it was not told to stop
        assert self.process.poll() is None, self.said()
        self.process.kill()
        self.process.wait()

    def discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def finish(self) -> None:
        """Lets it end after its next batch."""
        wait_until(self.path.exists, why=self.said)
        self.path.with_suffix(".stop").touch()
        assert self.process.wait(PATIENCE_S) == 0, self.said()

    def rows(self) -> int:
        runs = json.loads(self.path.read_text())["runs"] if self.path.exists() else []
        return sum(run["rows"] for run in runs)

    def said(self) -> str:
        return self.path.with_suffix(".log").read_text()[-3000:]

    def verify(self) -> int:
        """Makes the same rows without any server; returns how many there were."""
        runs = json.loads(self.path.read_text())["runs"]
        assert len(runs) == 1, f"{self.path.name}: lost or had twice: {runs}"
        (run,) = runs
        with make(inline=True, **self.options) as reference:
            reference.load_state_dict(run["first"])
            assert digest_of(reference, run["rows"]) == run["digest"], f"{self.path.name}: other bytes in {run}"
        return int(run["rows"])


def digest_of(reference: PrepClient, rows: int) -> str:
    """Of the next so many rows, which end where a batch ends."""
    digest = ""
    while True:
        for batch in reference:
            digest = extend(digest, batch)
            rows -= len(batch["index"])
            assert rows >= 0
            if rows == 0:
                return digest


class Chaos:
    """One run.

    Attributes:
        counts: What has happened, how often.
    """

    def __init__(self, server: Server, home: Path, chance: random.Random) -> None:
        self._server = server
        self._home = home
        self._chance = chance
        self._jobs: list[Job] = []
        self._done: list[Job] = []
        self._stopped: list[threading.Timer] = []
        self.counts: Counter[str] = Counter()

    @property
    def kills(self) -> int:
        return sum(count for event, count in self.counts.items() if event.startswith("kill"))

    def begin(self) -> None:
        """A job of each policy, on one stream."""
        for number, policy in enumerate(POLICIES):
            self._join(policy, {"shuffle": True, "seed": 0, "crop": (16, 24)[number % 2], "views": 1 + number % 2})
        wait_until(lambda: all(job.path.exists() for job in self._jobs), why=lambda: [j.said() for j in self._jobs])

    def step(self) -> None:
        """Whatever comes next."""
        event = self._chance.choices(list(EVENTS), list(EVENTS.values()))[0]
        getattr(self, "_" + event.replace(" ", "_"))()
        self.counts[event] += 1

    def rows(self) -> int:
        """How many rows the jobs have had, by their checkpoints."""
        return sum(job.rows() for job in [*self._jobs, *self._done])

    def end(self) -> int:
        """All jobs leave; returns how many rows were compared."""
        for job in self._jobs:
            job.finish()
        for timer in self._stopped:
            timer.join()
        return sum(job.verify() for job in [*self._jobs, *self._done])

    def discard(self) -> None:
        """After a failure too, no job is left."""
        for job in self._jobs:
            job.discard()
        for timer in self._stopped:
            timer.join()

    def _join(self, policy: str, options: dict[str, Any]) -> None:
        number = len(self._jobs) + len(self._done)
        job = Job(
            self._home, number, self._server.runtime_dir, policy, {"batch_size": (32, 50, 75)[number % 3], **options}
        )
        self._jobs.append(job)
        job.run()
        self.counts["join"] += 1

    def _leave(self) -> None:
        # what it stands for is a run that ends, and another one that begins
        job = self._chance.choice(self._jobs)
        job.finish()
        self._jobs.remove(job)
        self._done.append(job)
        options = {
            "shuffle": self._chance.choices((True, "full", False), (4, 1, 1))[0],
            "seed": self._chance.choices((0, 1), (4, 1))[0],
            "crop": self._chance.choice((16, 24)),
            "views": self._chance.choice((1, 1, 2)),
        }
        self._join(self._chance.choice(POLICIES), options)

    def _kill_worker(self) -> None:
        while True:
            wait_until(self._server.workers, why=self._server.log)
            pids = self._server.workers()
            with contextlib.suppress(ProcessLookupError, IndexError):  # it has just ended by itself
                os.kill(self._chance.choice(pids), signal.SIGKILL)
                return

    def _kill_client(self) -> None:
        job = self._chance.choice(self._jobs)
        job.kill()
        job.run()

    def _kill_daemon(self) -> None:
        self._server.look()
        self._server.process.kill()
        self._server.process.wait()
        self._server.launch()
        self._server.wait_up()

    def _kill_zygote(self) -> None:
        server, old = self._server, self._server.zygote
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: old not in (found := leaks.children(server.pid)) and found, why=server.log)
        server.wait_up()

    def _stop_worker(self) -> None:
        if pids := self._server.workers():
            # for a moment, or for so long that its chunk is made a second time
            self._stop(self._chance.choice(pids), self._chance.choice((0.3, 3.0)))

    def _stop_client(self) -> None:
        # for so long that those who do not wait for it have left it behind
        self._stop(self._chance.choice(self._jobs).process.pid, 3.5)

    def _stop_daemon(self) -> None:
        self._stop(self._server.pid, self._chance.uniform(0.2, 3.0))
        self._stopped[-1].join()  # nobody could ask it for its workers

    def _stop(self, pid: int, seconds: float) -> None:
        """Stops a process without waiting; it may be killed before it continues."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._stopped.append(threading.Timer(seconds, _continue, [pid]))
        self._stopped[-1].start()


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def chaos(new_server: Callable[..., Server], home: Path, seconds: float, seed: int) -> tuple[Counter[str], int]:
    """Runs for `seconds`, and longer until `KILLS_PER_S` is reached and the jobs have had an epoch of rows; returns the
    counts and the number of compared rows."""
    chance = random.Random(seed)
    server = new_server(workers=WORKERS, settings={"drain_s": 0.2})
    baseline, resident = server.settled(), leaks.resident_bytes(server.pid)
    run = Chaos(server, home, chance)
    try:
        run.begin()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s or run.kills < seconds * KILLS_PER_S or run.rows() <= SAMPLES:
            time.sleep(chance.uniform(0.2, 1.5))
            run.step()
        rows = run.end()
    finally:
        run.discard()
    # Nothing is left of all those that were killed: no process, descriptor or ring of this daemon or of earlier ones.
    server.assert_back_at(baseline)
    assert len(leaks.marked(server.mark)) == baseline.processes
    assert leaks.resident_bytes(server.pid) - resident < KEPT_MOST_BYTES
    assert server.status()["quarantined"] == {}
    return run.counts, rows


@pytest.mark.fault
def test_a_short_chaos_changes_no_byte(new_server: Callable[..., Server], tmp_path: Path) -> None:
    """Ten seconds of kills: each job's rows are those that it would have had alone, without a server."""
    _, rows = chaos(new_server, tmp_path, 10.0, seed=5)
    assert rows > SAMPLES


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_a_long_chaos_changes_no_byte(new_server: Callable[..., Server], tmp_path: Path) -> None:
    """The same for ten minutes, by ``make chaos``: 200 kills at least, of everything."""
    seconds = float(os.environ.get("PREPSERVER_CHAOS_S", "600"))
    seed = int(os.environ.get("PREPSERVER_CHAOS_SEED", str(time.monotonic_ns() % 100_000)))
    counts, rows = chaos(new_server, tmp_path, seconds, seed)
    sys.stderr.write(f"\nchaos: seed {seed}, {seconds:g} s, {dict(counts)}, {rows} rows compared\n")
    if seconds >= 600:
        assert all(counts[event] for event in EVENTS)
