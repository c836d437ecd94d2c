"""``workers=N``: a private daemon that ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from prepclient import NoServer, PrepClient, Sharding, SyntheticImages, private
from tests.support import leaks
from tests.support.clients import OPS, ClientProcess, inline_rows, read
from tests.support.server import Server, environment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., ClientProcess]
SOURCE = SyntheticImages(200, 32)
SPEC: dict[str, Any] = {"shuffle": True, "batch_size": 16}


@pytest.fixture
def owner(client_process: Start, tmp_path: Path) -> ClientProcess:
    """A process whose client has a private daemon; the mark is the directory's name."""
    env = {leaks.MARK: tmp_path.name, "TMPDIR": "/tmp"}
    return client_process(tmp_path / "none", SOURCE, workers=2, env=env, **SPEC)


def daemons(tmp_path: Path) -> dict[int, str]:
    found = leaks.marked(tmp_path.name)
    return {pid: command for pid, command in found.items() if "prepserver" in command}


def runtime_dir(commands: dict[int, str]) -> Path:
    (daemon,) = (command for command in commands.values() if "--runtime-dir" in command)
    words = daemon.split()
    return Path(words[words.index("--runtime-dir") + 1])


def test_it_serves_the_same_rows_and_ends_with_its_client(owner: ClientProcess, tmp_path: Path) -> None:
    assert owner.read() == inline_rows(SOURCE, **SPEC)
    # The daemon, the zygote, two workers; what listed the samples ends by itself.
    running = wait_until(lambda: found if len(found := daemons(tmp_path)) == 4 else {}, why=lambda: daemons(tmp_path))
    place = runtime_dir(running)
    owner.ask("close")
    assert daemons(tmp_path) == {}
    assert not place.exists()


def test_it_ends_when_its_process_ends_without_closing(owner: ClientProcess, tmp_path: Path) -> None:
    owner.read(2)
    place = runtime_dir(daemons(tmp_path))
    assert owner.process.stdin is not None
    owner.process.stdin.close()
    owner.process.wait()
    assert leaks.marked(tmp_path.name) == {}
    assert not place.exists()


def test_it_ends_when_its_process_is_killed(owner: ClientProcess, tmp_path: Path) -> None:
    owner.read(2)
    place = runtime_dir(daemons(tmp_path))
    rings = {inode for pid in leaks.marked(tmp_path.name) for inode in leaks.rings(pid)}
    assert rings
    owner.kill()
    owner.process.wait()
    wait_until(lambda: leaks.marked(tmp_path.name) == {}, why=lambda: leaks.marked(tmp_path.name))
    assert leaks.holders(rings) == {}
    assert not place.exists()


def test_it_ends_when_its_process_is_killed_while_it_starts(short_path: Path) -> None:
    (short_path / "slow.py").write_text(f"import os, time\nos.mkdir({str(short_path / 'begun')!r})\ntime.sleep(600)\n")
    owner = subprocess.Popen(["sleep", "600"])
    env = environment(PYTHONPATH=os.pathsep.join([environment()["PYTHONPATH"], str(short_path)]))
    command = [*(sys.executable, "-m", "prepserver.cli", "start", "--workers", "1"), *("--lifeline", str(owner.pid))]
    command += ["--runtime-dir", str(short_path / "run"), "--plugin", "slow"]
    daemon = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    wait_until((short_path / "begun").exists)
    owner.kill()
    owner.wait()
    said = daemon.communicate()[1]
    assert "prepserver start: the process that this daemon belongs to has ended" in said


def test_all_clients_of_a_process_share_one(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    others = leaks.children(os.getpid())  # such as the resource tracker of multiprocessing, which stays
    arguments: dict[str, Any] = {"workers": 1, "runtime_dir": short_path / "none", "fields": "dict", **SPEC}
    places = {place_of(PrepClient(SOURCE, OPS, **arguments), short_path) for _ in range(2)}
    assert len(places) == 2  # each ended with its client
    train, val = (PrepClient(SOURCE, OPS, **arguments) for _ in range(2))
    for client in (train, val):
        assert sorted(index for index, _ in read(client)) == list(range(200))
    (place,) = short_path.iterdir()
    train.close()
    assert len(read(val)) == 200
    train = PrepClient(SOURCE, OPS, **arguments)
    next(iter(train))
    assert list(short_path.iterdir()) == [place]
    val.close()
    assert place.exists()
    del client
    train = PrepClient(SOURCE, OPS, **arguments)  # as a notebook does where a cell is run again
    assert list(short_path.iterdir()) == [place]
    next(iter(train))
    assert list(short_path.iterdir()) == [place]
    train = PrepClient(SOURCE, OPS, **{**arguments, "workers": 2})
    assert list(short_path.iterdir()) == []
    assert set(leaks.children(os.getpid())) <= set(others)


def test_threads_that_begin_at_the_same_time_share_one(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    clients = [
        PrepClient(SOURCE, OPS, workers=1, runtime_dir=short_path / "none", job=f"job {number}", **SPEC)
        for number in range(3)
    ]
    with ThreadPoolExecutor(len(clients)) as threads:
        assert list(threads.map(len, clients)) == [len(clients[0])] * len(clients)
    assert len(list(short_path.iterdir())) == 1
    for client in clients:
        client.close()


def place_of(client: PrepClient, base: Path) -> Path:
    assert read(client) == inline_rows(SOURCE, **SPEC)
    (place,) = base.iterdir()
    return place


def test_one_that_was_killed_is_replaced(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    others = leaks.children(os.getpid())
    with PrepClient(SOURCE, OPS, workers=1, runtime_dir=short_path / "none", fields="dict", **SPEC) as client:
        rows = read(client)
        (daemon,) = set(leaks.children(os.getpid())) - set(others)
        os.kill(daemon, signal.SIGKILL)
        while len(rows) < 12 * 200:  # more than a ring holds
            rows += read(client)
        assert rows == inline_rows(SOURCE, epochs=12, **SPEC)


def test_what_a_killed_one_left_is_removed_by_the_next(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    dead, new, running, other = (short_path / name for name in (
        "prepserver-private-dead", "prepserver-private-new", "prepserver-private-running", "prepserver-0"
    ))  # fmt: skip
    for place in (dead, new, running, other):
        place.mkdir()
        (place / "lock").touch()
    for place in (dead, running, other):
        os.utime(place, (0, 0))
    with (running / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with PrepClient(SOURCE, OPS, workers=1, runtime_dir=short_path / "none", **SPEC) as client:
            len(client)
    assert sorted(short_path.iterdir()) == sorted([new, running, other])


def test_a_running_daemon_is_preferred(server: Server, client_process: Start) -> None:
    client = client_process(server, SOURCE, workers=3, **SPEC)
    client.ask("attach")
    assert [job["pid"] for job in server.status()["jobs"]] == [client.pid]
    assert leaks.children(client.pid) == []
    client.ask("close")


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs a directory of another user")
def test_a_usual_place_that_is_shut_holds_no_daemon_of_this_user(short_path: Path) -> None:
    """Somebody has left it. Where no private daemon is asked for, and where it is named, that is an error."""
    place = short_path / "prepserver"
    place.mkdir(mode=0o700)
    os.chown(place, 60993, 60993)
    script = (
        "from prepclient import NoPermission, PrepClient, SyntheticImages as S\n"
        "from prepserver.cli import doctor\n"
        "from tests.support.clients import OPS\n"
        "print(doctor._daemon(None).severity, end=' ')\n"
        f"for more in ({{}}, {{'workers': 1, 'runtime_dir': {str(place)!r}}}, {{'workers': 1}}, {{'workers': 1}}):\n"
        "    try:\n"
        "        with PrepClient(S(32, 32), OPS, batch_size=16, connect_s=0, **more) as client:\n"
        "            print(sum(1 for _ in client), end=' ')\n"
        "    except NoPermission as e:\n"
        "        print(type(e).__name__, end=' ')\n"
    )
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", script],
        env=environment(XDG_RUNTIME_DIR=str(short_path)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["slow", "NoPermission", "NoPermission", "2", "2"], done.stderr
    assert done.stderr.count("this user cannot see whether another one runs") == 1
    assert "the directory belongs to uid 60993, gid 60993, mode 700" in done.stderr


def test_under_a_long_temporary_directory_it_has_a_short_one(
    client_process: Start, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = short_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
        client = client_process(short_path / "none", SOURCE, workers=1, env={name: str(deep)}, **SPEC)
        assert client.read() == inline_rows(SOURCE, **SPEC)
        client.ask("close")
    assert list(deep.iterdir()) == []


def test_without_any_short_directory_it_says_what_to_set(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setattr(private, "_LAST_BASE", str(deep))
    with (
        PrepClient(SOURCE, OPS, workers=1, runtime_dir=tmp_path / "none") as client,
        pytest.raises(NoServer) as refused,
    ):
        len(client)
    for word in (f"{short_path}/none: No such file", f"is {len(str(deep))} bytes long, and 67 leave room", "$TMPDIR"):
        assert word in str(refused.value)
    assert list(deep.iterdir()) == []


def test_a_private_daemon_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before that, that it waits, and that it would wait for ranks which other processes may have."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho a first line >&2; echo no such library >&2; exit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(private, "_SAID_AFTER_S", 0.0)
    for ranks, warnings in ((1, 0), (2, 1)):
        with (
            PrepClient(
                SOURCE, OPS, workers=1, runtime_dir=tmp_path / "none", sharding=Sharding(0, ranks), job="x"
            ) as job,
            pytest.raises(NoServer, match="did not start: no such library\nIts log before that:\na first line"),
        ):
            len(job)
        assert caplog.text.count("waiting up to 90 s for the private daemon (workers=1) to start in") == 1 + warnings
        assert caplog.text.count("waits for all 2 ranks of the job on this machine") == warnings
