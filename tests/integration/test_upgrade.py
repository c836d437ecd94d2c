"""A newer daemon takes the place of the running one; releases too far from each other say so."""

from __future__ import annotations

import os
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
from tests.support import newer_daemon
from tests.support.clients import OPS, ClientProcess, Rows, inline_rows
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., ClientProcess]
ROOT = Path(__file__).resolve().parents[2]
NEWER = (newer_daemon.__file__,)
SOURCE = SyntheticImages(600, size=40, seed=5)
SPEC: dict[str, Any] = {"shuffle": True, "seed": 4}
SIZES = 20, 33


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
        """Reads epoch after epoch."""
        until_s = time.monotonic() + PATIENCE_S
        while not is_over():
            assert time.monotonic() < until_s
            self.read(1)

    def close(self) -> None:
        """Asserts that both got each row of each epoch once and in order, and ends them."""
        for rows, client in zip(self.rows, self.clients, strict=True):
            epochs, rest = divmod(len(rows), SOURCE.n)
            assert rest == 0
            assert rows == inline_rows(SOURCE, batch_size=50, **SPEC, epochs=epochs)
            client.ask("close")


@pytest.fixture
def jobs(new_server: Callable[..., Server], client_process: Start) -> tuple[Server, Jobs]:
    server = new_server(workers=2)
    return server, Jobs(*(client_process(server, SOURCE, batch_size=size, **SPEC) for size in SIZES))


def test_jobs_go_on_when_a_newer_release_takes_over(jobs: tuple[Server, Jobs]) -> None:
    """It has another version and protocol, and more in its messages; then it is killed in mid-epoch, and started anew."""
    server, both = jobs
    both.read(2)
    old = server.process
    new = server.another("--replace", program=NEWER)
    both.read_until(lambda: old.poll() is not None)
    assert old.returncode == exits.OK
    server.adopt(new)
    both.read(3)
    assert (server.status()["pid"], server.status()["version"]) == (new.pid, "99.0")
    assert len(server.status()["jobs"]) == 2
    new.kill()
    new.wait()
    server.start()
    both.read()
    both.close()


def test_a_successor_that_dies_before_its_turn_changes_nothing(jobs: tuple[Server, Jobs]) -> None:
    server, both = jobs
    both.read(2)
    assert server.another("--replace", "--plugin", "no_such_module").wait(PATIENCE_S) == exits.USAGE
    assert server.another("--replace", program=NEWER, env={"DIES": "before"}).wait(PATIENCE_S) == -9
    assert server.status()["pid"] == server.pid
    both.read()
    both.close()


def test_a_successor_that_dies_in_its_turn_costs_time_only(jobs: tuple[Server, Jobs]) -> None:
    """Nobody serves until a daemon is started again, and the jobs wait for it."""
    server, both = jobs
    both.read(2)
    new = server.another("--replace", program=NEWER, env={"DIES": "after"})
    assert server.process.wait(PATIENCE_S) == exits.OK
    assert new.wait(PATIENCE_S) == -9
    server.start()
    both.read()
    both.close()


def test_of_two_successors_at_once_one_serves(jobs: tuple[Server, Jobs]) -> None:
    server, both = jobs
    both.read(2)
    old, new = server.process, [server.another("--replace") for _ in range(2)]
    wait_until(lambda: old.poll() is not None and any(each.poll() is not None for each in new), why=server.log)
    (lost,), (won,) = ([each for each in new if (each.poll() is None) == runs] for runs in (False, True))
    assert lost.returncode in (exits.OK, exits.ALREADY_RUNNING)  # replaced in its turn, or too late
    server.adopt(won)
    both.read()
    assert server.status()["pid"] == won.pid
    both.close()


# -- the last release ---------------------------------------------------------------------------------------------


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", os.fspath(ROOT), *arguments], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """The last release beside this one: its version, and the environment in which Python finds it."""
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v*").decode().strip()
    packed = _git("archive", tag, "prepserver", "client/prepclient") if tag else b""
    if not packed:
        pytest.skip("no released version at hand: this is no git checkout with its tags")
    home = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=BytesIO(packed)) as tar:
        tar.extractall(home, filter="data")
    return tag.removeprefix("v"), environment(PYTHONPATH=f"{home}{os.pathsep}{home / 'client'}")


@pytest.fixture
def older(release: tuple[str, dict[str, str]], short_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A daemon of the last release: its directory and its process."""
    command = [
        *(sys.executable, "-m", "prepserver.cli", "start", "--workers", "1", "--memory", "64M"),
        *("--runtime-dir", str(short_path / "run"), "--cache-dir", str(short_path / "cache")),
    ]
    log = short_path / "log"
    with log.open("wb") as out:
        daemon = subprocess.Popen(command, env=release[1], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    wait_until(lambda: (short_path / "run" / ATTACH_SOCKET).exists(), why=log.read_text)
    yield short_path / "run", daemon
    daemon.terminate()
    daemon.wait(PATIENCE_S)


def test_a_client_of_the_last_release_is_told_what_to_install(
    server: Server, release: tuple[str, dict[str, str]]
) -> None:
    version, env = release
    command = [sys.executable, "-m", "prepserver.cli", "status", "--runtime-dir", str(server.runtime_dir)]
    asked = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    script = (
        "from prepclient import *\n"
        f"c = PrepClient(SyntheticImages(64, 8), [RandomResizedCrop(8)], batch_size=8, runtime_dir={command[-1]!r})\n"
        "try: len(c)\n"
        "except VersionMismatch as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    for said in (asked.stderr, done.stdout):
        assert f"the client (prepserver {version}) is of a release before protocol" in said, (asked, done)
        assert f"install {__version__} for the job, too" in said
    assert asked.returncode == exits.FAILED
    assert server.status()["jobs"] == []


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
