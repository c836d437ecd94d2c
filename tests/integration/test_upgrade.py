"""A newer daemon takes the place of the running one; releases too far from each other say so."""

from __future__ import annotations

import os
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

from prepclient import PrepClient, VersionMismatch
from prepserver import __version__
from prepserver.cli import exits
from prepserver.pipeline.sources import SyntheticImages
from prepserver.protocol.messages import ATTACH_SOCKET
from prepserver.protocol.versions import PROTOCOL
from tests.support.clients import OPS, ClientProcess, Rows, inline_rows
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., ClientProcess]
ROOT = Path(__file__).resolve().parents[2]
NEWER = (os.fspath(ROOT / "tests" / "support" / "newer_daemon.py"),)
SOURCE = SyntheticImages(600, size=40, seed=5)
SPEC: dict[str, Any] = {"shuffle": True, "seed": 4}
SIZES = 20, 33
_PAUSE_S = 0.2


class Jobs:
    """Two jobs that share a stream, and what they have read.

    Args:
        clients: One of each of `SIZES`.
    """

    def __init__(self, *clients: ClientProcess) -> None:
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
    server = Server(workers=2)
    try:
        yield server.start()
    finally:
        server.stop()
        server.discard()


def test_jobs_go_on_with_the_next_release_or_without_it(running: Server, client_process: Start) -> None:
    jobs = Jobs(*(client_process(running, SOURCE, batch_size=size, **SPEC) for size in SIZES))
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


# -- the last release ---------------------------------------------------------------------------------------------


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", os.fspath(ROOT), *arguments], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The last release beside this one: its version, and where a process must be to find it."""
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v*").decode().strip()
    packed = _git("archive", tag, "prepserver", "client/prepclient") if tag else b""
    if not packed:
        pytest.skip("no released version at hand: this is no git checkout with its tags")
    home = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=BytesIO(packed)) as tar:
        tar.extractall(home, filter="data")
    found = environment(PYTHONPATH=f"{home}{os.pathsep}{home / 'client'}")
    return tag.removeprefix("v"), {"cwd": home, "env": found, "stdin": subprocess.DEVNULL}


@pytest.fixture
def older(release: tuple[str, dict[str, Any]], short_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A daemon of the last release: its directory and its process."""
    command = [
        *(sys.executable, "-m", "prepserver.cli", "start", "--workers", "1", "--memory", "64M"),
        *("--runtime-dir", str(short_path / "run"), "--cache-dir", str(short_path / "cache")),
    ]
    log = short_path / "log"
    with log.open("wb") as out:
        daemon = subprocess.Popen(command, stdout=out, stderr=out, **release[1])
    wait_until(lambda: (short_path / "run" / ATTACH_SOCKET).exists(), why=log.read_text)
    yield short_path / "run", daemon
    daemon.terminate()
    daemon.wait(PATIENCE_S)


def test_a_client_of_the_last_release_is_told_what_to_install(
    running: Server, release: tuple[str, dict[str, Any]]
) -> None:
    version, place = release
    runtime_dir = str(running.runtime_dir)
    script = (
        "from prepclient import *\n"
        f"c = PrepClient(SyntheticImages(64, 8), [RandomResizedCrop(8)], batch_size=8, runtime_dir={runtime_dir!r})\n"
        "try: len(c)\n"
        "except VersionMismatch as e: print(e)"
    )
    for command in (["-c", script], ["-m", "prepserver.cli", "status", "--runtime-dir", runtime_dir]):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False, **place
        )
        said = done.stdout + done.stderr
        assert f"the client (prepserver {version}) is of a release before protocol" in said
        assert f"install {__version__} for the job, too" in said
    assert running.status()["jobs"] == []


def test_a_daemon_of_the_last_release_is_named_and_goes_on(older: tuple[Path, subprocess.Popen[bytes]]) -> None:
    """A client and the commands of this release say what to do; nothing hangs."""
    runtime_dir, daemon = older
    what = f"the daemon is of a release before protocol {PROTOCOL}"
    with PrepClient(SOURCE, OPS, runtime_dir=runtime_dir) as client, pytest.raises(VersionMismatch, match=what):
        len(client)
    for command in (["status"], ["start", "--replace", "--workers", "1"]):
        done = cli(*command, "--runtime-dir", str(runtime_dir))
        assert done.returncode == exits.FAILED
        assert what in done.stderr
        assert f"stop it with its own `prepserver stop`, and start {__version__}" in done.stderr
    assert daemon.poll() is None
