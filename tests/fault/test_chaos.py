"""Random kills and stops of everything, while jobs of mixed policies come and go: no row may differ.

``make chaos`` runs the long one; PREPSERVER_CHAOS_S sets its seconds, PREPSERVER_CHAOS_SEED repeats one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import chaos_job
from tests.support.chaos_job import SAMPLES, extend, make
from tests.support.server import Server, environment
from tests.support.waiting import wait_until

POLICIES = ("auto", "wait", "detach")
STOPPED_S = 2.5  # long enough to be left behind by those that do not wait


class Job:
    """One job, restarted from its checkpoint whenever it was killed."""

    def __init__(self, home: Path, number: int, runtime_dir: Path, policy: str) -> None:
        self.path = home / f"job{number}"
        self.options = {
            "batch_size": (32, 50, 75)[number % 3], "shuffle": (True, True, "full")[number % 3], "seed": number % 2,
        }  # fmt: skip
        served = {"runtime_dir": str(runtime_dir), "lag": policy, "job": f"job{number}", "timeout_s": 120.0}
        self.arguments = [str(self.path), json.dumps({**self.options, **served})]
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        with self.path.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, chaos_job.__file__, *self.arguments],
                env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        """Lets it end after its next batch."""
        assert self.process is not None
        self.path.with_suffix(".stop").touch()
        assert self.process.wait(120) == 0, self.path.with_suffix(".log").read_text()[-3000:]

    def verify(self) -> int:
        """Makes the same rows without any server; returns how many there were."""
        state = json.loads(self.path.read_text())
        with make(inline=True, **self.options) as reference:
            reference.load_state_dict(state["first"])
            digest, rows = "", 0
            while rows < state["rows"]:
                for batch in reference:
                    digest = extend(digest, batch)
                    rows += len(batch["index"])
                    if rows >= state["rows"]:
                        break
        assert rows == state["rows"]
        assert digest == state["digest"], f"{self.path.name}: other bytes among {rows} rows"
        return rows


def chaos(new_server: Callable[..., Server], home: Path, seconds: float, seed: int) -> tuple[int, int]:
    """Runs it; returns the number of kills and the number of rows that were compared."""
    chance = random.Random(seed)
    server = new_server(workers=2, settings={"drain_s": 0.2})
    jobs = [Job(home, number, server.runtime_dir, POLICIES[number % 3]) for number in range(3)]
    done: list[Job] = []
    for job in jobs:
        job.run()
    wait_until(lambda: all(job.path.exists() for job in jobs))
    kills = 0
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        time.sleep(chance.uniform(0.2, 1.5))
        what = chance.choices(
            ("worker", "client", "stop client", "stop worker", "daemon", "leave"), (8, 4, 2, 2, 1, 1)
        )[0]
        job = chance.choice(jobs)
        match what:
            case "worker":
                kills += kill_one(chance, server.workers())
            case "stop worker":
                hold(chance, server.workers(), 0.3)
            case "client":
                job.kill()
                kills += 1
                job.run()
            case "stop client":
                assert job.process is not None
                hold(chance, [job.process.pid], STOPPED_S)
            case "daemon":
                server.process.kill()
                server.process.wait()
                kills += 1
                server.launch()
                server.wait_up()
            case "leave":
                # what it stands for is a run that ends, and another one that begins
                wait_until(lambda job=job: job.path.exists())  # type: ignore[misc]
                job.finish()
                done.append(job)
                jobs[jobs.index(job)] = new = Job(home, len(done) + 3, server.runtime_dir, chance.choice(POLICIES))
                new.run()
    for job in jobs:
        wait_until(job.path.exists)
        job.finish()
    assert server.status()["jobs"] == []
    return kills, sum(job.verify() for job in [*jobs, *done])


def kill_one(chance: random.Random, pids: list[int]) -> int:
    if not pids:
        return 0
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except ProcessLookupError:  # it has just ended by itself
        return 0
    return 1


def hold(chance: random.Random, pids: list[int], seconds: float) -> None:
    if not pids:
        return
    pid = chance.choice(pids)
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_a_short_chaos_changes_no_byte(new_server: Callable[..., Server], tmp_path: Path) -> None:
    """Twenty seconds of kills: each job's rows are those that it would have had alone, without a server."""
    kills, rows = chaos(new_server, tmp_path, 20.0, seed=5)
    assert kills > 3
    assert rows > SAMPLES


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_long_chaos_changes_no_byte(new_server: Callable[..., Server], tmp_path: Path) -> None:
    """The same for ten minutes, by ``make chaos``."""
    seconds = float(os.environ.get("PREPSERVER_CHAOS_S", "600"))
    seed = int(os.environ.get("PREPSERVER_CHAOS_SEED", str(time.monotonic_ns() % 100_000)))
    kills, rows = chaos(new_server, tmp_path, seconds, seed)
    sys.stderr.write(f"\nchaos: seed {seed}, {kills} kills in {seconds:g} s, {rows} rows compared\n")
    assert kills >= seconds / 3
