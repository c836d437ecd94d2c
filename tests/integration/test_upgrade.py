"""A newer daemon takes the place of the running one; the last release and this one work together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from prepclient import Joining
from prepserver import __version__
from prepserver.cli import exits
from prepserver.pipeline.sources import SyntheticImages
from tests.support.clients import ClientProcess, Rows, inline_rows
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., ClientProcess]
ROOT = Path(__file__).resolve().parents[2]
NEWER = (os.fspath(ROOT / "tests" / "support" / "newer_daemon.py"),)
SOURCE = SyntheticImages(600, size=40, seed=5)
SPEC: dict[str, Any] = {"shuffle": True, "seed": 4}
LAG = Joining(wait_s=600.0)  # a job that has read its epoch and rests does not hold up the other one
SIZES = 20, 33
_PAUSE_S = 0.2


class Jobs:
    """Two jobs that share a stream, and what they have read.

    Args:
        clients: One of each of `SIZES`.
    """

    def __init__(self, *clients: ClientProcess) -> None:
        for client in clients:
            client.ask("attach")  # before any of them reads on
        self.clients = clients
        self.rows: list[Rows] = [[] for _ in clients]

    def read(self, batches: int | None = None) -> None:
        """Reads, both at a time; without a number to the end of the epoch."""
        for client in self.clients:
            client.order("read", batches=batches)
        for rows, client in zip(self.rows, self.clients, strict=True):
            rows += client.collect()

    def read_until(self, is_over: Callable[[], bool]) -> None:
        """Reads a batch now and then, epoch after epoch."""
        until_s = time.monotonic() + PATIENCE_S
        while not is_over():
            assert time.monotonic() < until_s
            self.read(1)
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Asserts that each has got every row of every epoch once and in order, and ends it."""
        epochs = max(map(len, self.rows)) // SOURCE.n
        expected = inline_rows(SOURCE, batch_size=50, **SPEC, epochs=epochs)
        for rows, client in zip(self.rows, self.clients, strict=True):
            assert len(rows) % SOURCE.n == 0
            assert rows == expected[: len(rows)]
            client.ask("close")


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    """A daemon that serves before and after each test; one for all, because each that starts imports torch."""
    with Server(workers=2) as server:
        yield server


def test_jobs_go_on_with_the_next_release_or_without_it(running: Server, client_process: Start) -> None:
    jobs = Jobs(*(client_process(running, SOURCE, batch_size=size, joining=LAG, **SPEC) for size in SIZES))
    jobs.read(2)

    # One that cannot start: the old one serves on.
    assert running.another("--replace", "--memory", "much").wait(PATIENCE_S) == exits.USAGE
    assert running.status()["pid"] == running.pid

    # One of the next release, in the middle of an epoch, while both read.
    new = running.another("--replace", program=NEWER)
    jobs.read_until(lambda: running.process.poll() is not None)
    assert running.process.returncode == exits.OK
    running.adopt(new)
    jobs.read_until(lambda: len(running.status()["jobs"]) == 2)
    assert (running.status()["pid"], running.status()["version"]) == (new.pid, "99.0")

    # One that is killed when the old one has left: the jobs wait until a daemon is started, of whatever release.
    dying = running.another("--replace", program=NEWER, env={"DIES": "1"})
    assert running.process.wait(PATIENCE_S) == exits.OK
    assert dying.wait(PATIENCE_S) == -signal.SIGKILL
    running.start()
    jobs.read_until(lambda: len(running.status()["jobs"]) == 2)
    jobs.read()
    jobs.close()


def test_a_successor_that_is_stopped_while_it_waits_ends_once(running: Server) -> None:
    """SIGTERM comes while its workers start, which here they never do."""
    never = "import prepserver.daemon.pool as p, prepserver.cli as c; p.WorkerPool.local_up = 0; c.sys.exit(c.main())"
    before = running.log().count("stopped")
    new = running.another("--replace", program=("-c", never))
    caught = re.compile(r"SigCgt:\s(\w+)")
    status = Path(f"/proc/{new.pid}/status")
    wait_until(lambda: int(caught.findall(status.read_text())[0], 16) >> (signal.SIGTERM - 1) & 1, why=running.log)
    new.terminate()
    assert new.wait(PATIENCE_S) == exits.OK
    assert running.log().count("stopped") == before + 1
    assert running.status()["pid"] == running.pid


# -- the last release ---------------------------------------------------------------------------------------------


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", os.fspath(ROOT), *arguments], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """The last release, installed beside this one: its version, and the environment in which Python finds it."""
    # By the subject of its commit: clones may lack the tag.
    subjects = _git("log", "--extended-regexp", "--grep=^Release [0-9.]+$", "--format=%H %s").decode()
    releases = re.findall(r"^(\w+) Release ([0-9.]+)$", subjects, re.MULTILINE)
    commit, version = next((found for found in releases if found[1] != __version__), ("", ""))
    if not commit:
        pytest.skip("no release before this one: this is no git checkout, or one without the history")
    pytest.importorskip("hatchling", reason="installing a release needs hatchling")
    home = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=BytesIO(_git("archive", commit))) as tar:
        tar.extractall(home / "source", filter="data")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--target", str(home / "installed"), str(home / "source")], capture_output=True, text=True,
        env={**os.environ, "PREPSERVER_NATIVE": "0"}, timeout=PATIENCE_S, check=False,  # compiling takes longer
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The source holds its `tests`, too. Python is to find none of these where it is started, in this checkout.
    return version, {"PYTHONPATH": f"{home / 'installed'}{os.pathsep}{home / 'source'}", "PYTHONSAFEPATH": "1"}


def test_the_last_release_works_with_this_one(client_process: Start, release: tuple[str, dict[str, str]]) -> None:
    """As long as their protocols are the same, its daemon also serves clients of this release."""
    version, place = release
    within = ["env", *(f"{name}={value}" for name, value in place.items())]
    with Server(workers=1, env=place) as server:
        old = client_process(server, SOURCE, batch_size=SIZES[0], joining=LAG, within=within, **SPEC)
        new = client_process(server, SOURCE, batch_size=SIZES[1], joining=LAG, **SPEC)
        jobs = Jobs(old, new)
        jobs.read(2)
        assert (old.version, new.version, server.status()["version"]) == (version, __version__, version)
        trace = ("trace", "--seconds", "0.1", "-o", os.devnull, "--runtime-dir", str(server.runtime_dir))
        assert f"the daemon is release {version}" in cli(*trace).stderr

        # This release takes over in the middle of an epoch, while both read.
        daemon = server.another("--replace", env={"PYTHONPATH": environment()["PYTHONPATH"]})
        jobs.read_until(lambda: server.process.poll() is not None)
        server.adopt(daemon)
        jobs.read_until(lambda: len(server.status()["jobs"]) == 2)
        jobs.read()
        shown = cli("status", "--json", "--runtime-dir", str(server.runtime_dir), **place)
        assert json.loads(shown.stdout)["version"] == __version__, shown.stderr

        # Both go on from a checkpoint of the old one.
        jobs.read(3)
        state, done = old.ask("state"), len(jobs.rows[0])
        jobs.read()
        for client in jobs.clients:
            client.ask("load", state=state)
            assert client.read() == jobs.rows[0][done:]
        jobs.close()
