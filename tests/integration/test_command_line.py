"""``prepserver start | status | stop`` as scripts and people use them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import Joining, PrepClient, SyntheticImages
from prepserver import __version__
from prepserver.cli import exits
from tests.support import leaks
from tests.support.clients import OPS, ClientError, ClientProcess
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., ClientProcess]
NewServer = Callable[..., Server]
SOURCE = SyntheticImages(64, 32)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="pst-", dir="/tmp") as made:
        yield Path(made)


def test_a_second_daemon_is_refused_with_the_pid_of_the_first(server: Server) -> None:
    done = cli("start", "--workers", "1", "--runtime-dir", str(server.runtime_dir))
    assert done.returncode == exits.ALREADY_RUNNING == 4
    assert f"pid {server.pid}" in done.stderr
    assert "prepserver stop" in done.stderr
    assert server.workers() != []  # the first one goes on


@pytest.mark.parametrize("command", ["status", "stop"])
def test_status_and_stop_without_a_daemon_say_so(short_dir: Path, command: str) -> None:
    for place in (short_dir, short_dir / "missing"):
        done = cli(command, "--runtime-dir", str(place))
        assert done.returncode == exits.NO_DAEMON == 3
        assert str(place) in done.stderr
        assert done.stdout == ""


def test_a_killed_daemons_sockets_count_as_no_daemon(new_server: NewServer) -> None:
    """A new daemon takes its place."""
    server = new_server(workers=1)
    server.look()
    server.process.kill()
    server.process.wait()
    assert (server.runtime_dir / "attach.sock").exists()
    assert cli("status", "--runtime-dir", str(server.runtime_dir)).returncode == exits.NO_DAEMON
    server.start()
    with PrepClient(SOURCE, OPS, batch_size=16, runtime_dir=server.runtime_dir) as client:
        assert len(list(client)) == 4


def test_status_as_json_says_what_runs(server: Server) -> None:
    with PrepClient(SOURCE, OPS, batch_size=16, job="mine", runtime_dir=server.runtime_dir) as client:
        next(iter(client))
        done = cli("status", "--json", "--runtime-dir", str(server.runtime_dir))
    assert done.returncode == exits.OK
    found = json.loads(done.stdout)
    assert found["version"] == __version__
    assert found["pid"] == server.pid
    assert found["state"] == "running"
    assert [worker["number"] for worker in found["workers"]] == [0, 1]
    (job,) = found["jobs"]
    assert (job["name"], job["rank"], job["world_size"], job["batch_size"]) == ("mine", 0, 1, 16)
    assert job["pid"] == os.getpid()
    (stream,) = found["streams"]
    assert stream["samples"] == 64
    (lane,) = stream["lanes"]
    assert found["memory"]["rings_bytes"] == lane["ring_bytes"] > 0
    assert found["memory"]["budget_bytes"] > lane["ring_bytes"]


def test_status_in_a_pipe_names_workers_jobs_and_streams(server: Server) -> None:
    """It has no colour codes there."""
    with PrepClient(SOURCE, OPS, batch_size=16, job="mine", runtime_dir=server.runtime_dir) as client:
        next(iter(client))
        done = cli("status", "--runtime-dir", str(server.runtime_dir), COLUMNS="200")
    assert done.returncode == exits.OK
    for word in (f"pid {server.pid}", str(server.runtime_dir), "workers", "jobs", "mine", "0/1", "streams", "sharing"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_status_in_a_pipe_has_one_whole_line_per_job(server: Server, client_process: Start) -> None:
    name = "a-sweep-over-learning-rates/with-a-name-that-is-far-too-long-for-eighty-columns/run-0042"
    client_process(server, SOURCE, batch_size=16, job=name).read(1)
    done = cli("status", "--runtime-dir", str(server.runtime_dir), COLUMNS="80")
    assert done.returncode == exits.OK
    row, verdict = [line for line in done.stdout.splitlines() if name in line]
    assert "0/1" in row
    assert verdict == f"job {name}"
    head = done.stdout.splitlines()[0]
    assert head.startswith(f"prepserver {__version__}")
    assert "kernels" in head


def test_status_tells_epoch_rate_and_share_of_waiting_of_a_job(server: Server, client_process: Start) -> None:
    client = client_process(server, SOURCE, batch_size=16, job="mine")

    def job() -> dict[str, Any]:
        return dict(server.status()["jobs"][0])

    client.read(2)
    assert job()["epoch"] == 0
    client.read()
    client.read(2)
    assert job()["epoch"] == 1
    assert 0 <= job()["epoch_fraction"] < 1
    wait_until(lambda: job()["images_per_s"] is not None and job()["wait_fraction"] is not None)
    assert job()["images_per_s"] >= 0
    assert 0 <= job()["wait_fraction"] <= 1


def test_workers_that_have_rested_for_a_while_are_not_busy(server: Server, client_process: Start) -> None:
    client_process(server, SOURCE, batch_size=16).read()
    wait_until(lambda: all(w["busy_fraction"] == 0 for w in server.status()["workers"]))


def test_status_names_the_job_that_a_job_waits_for(server: Server, client_process: Start) -> None:
    source = SyntheticImages(4096, 32)
    slow, fast = (
        client_process(server, source, batch_size=8, job=name, joining=Joining(lag="wait")) for name in ("slow", "fast")
    )
    for client in (slow, fast):
        client.ask("attach")  # both, before the stream has moved on
    slow.read(1)
    fast.read(1)
    reader = threading.Thread(target=fast.read)
    reader.start()

    def waits() -> dict[str, tuple[int, str | None]]:
        return {job["name"]: (job["id"], job["waits_for"]) for job in server.status()["jobs"]}

    try:
        wait_until(lambda: waits()["fast"][1] == f"job {waits()['slow'][0]}", why=waits)
        assert waits()["slow"][1] is None
    finally:
        slow.end()  # so that the other one can go on, and its thread end
        reader.join(PATIENCE_S)


def test_status_watched_in_a_pipe_prints_until_its_reader_goes(server: Server) -> None:
    command = [sys.executable, "-m", "prepserver.cli", "status", "--json", "--watch", "0.1"]
    with subprocess.Popen(
        [*command, "--runtime-dir", str(server.runtime_dir)], env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert [json.loads(process.stdout.readline())["pid"] for _ in range(3)] == [server.pid] * 3
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == ""


def test_status_watch_ends_quietly_on_ctrl_c_or_daemon_exit(new_server: NewServer) -> None:
    server = new_server(workers=1)
    command = [sys.executable, "-m", "prepserver.cli", "status", "--watch", "0.1", "--runtime-dir"]
    for by_hand, code in ((True, exits.OK), (False, exits.NO_DAEMON)):
        with subprocess.Popen(
            [*command, str(server.runtime_dir)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:  # the second time that it is shown, it is not being started any more
                if line == "\n":
                    break
            (process if by_hand else server.process).send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == code
            said = process.stderr.read()
            assert said == "" if by_hand else "no daemon runs" in said


def test_no_color_leaves_colours_out_on_a_terminal(server: Server) -> None:
    def shown(**more: str) -> str:
        ours, theirs = pty.openpty()
        env = environment(TERM="xterm-256color", COLUMNS="200", **more)
        command = [sys.executable, "-m", "prepserver.cli", "status", "--runtime-dir", str(server.runtime_dir)]
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
            os.close(theirs)
            text = b""
            with contextlib.suppress(OSError):  # the end of a terminal is an error
                while data := os.read(ours, 4096):
                    text += data
            os.close(ours)
            assert process.wait(PATIENCE_S) == exits.OK
        return text.decode()

    assert "workers" in shown()
    plain = shown(NO_COLOR="1")
    assert "workers" in plain
    codes = {int(code) for run in re.findall(r"\x1b\[([\d;]*)m", plain) for code in run.split(";") if code}
    assert not codes & {*range(30, 50), *range(90, 108)}, codes


def test_stop_ends_the_daemon_and_leaves_nothing(new_server: NewServer) -> None:
    server = new_server(workers=2)
    with PrepClient(SOURCE, OPS, batch_size=16, runtime_dir=server.runtime_dir) as client:
        assert len(list(client)) == 4
        server.look()
        assert server.seen_rings
    assert cli("stop", "--runtime-dir", str(server.runtime_dir)).returncode == exits.OK
    assert server.process.wait(PATIENCE_S) == exits.OK
    server.assert_gone()
    assert sorted(path.name for path in server.runtime_dir.iterdir()) == ["lock"]
    assert cli("status", "--runtime-dir", str(server.runtime_dir)).returncode == exits.NO_DAEMON


def test_a_detached_daemon_is_ready_on_return_and_stop_ends_it(short_dir: Path) -> None:
    where = ("--runtime-dir", str(short_dir / "run"))
    done = cli(
        "start", "-d", "--workers", "1", "--cache-dir", str(short_dir / "cache"), *where, **{leaks.MARK: short_dir.name}
    )
    try:
        assert done.returncode == exits.OK, done.stderr
        status = json.loads(cli("status", "--json", *where).stdout)
        assert os.getsid(status["pid"]) not in (os.getsid(0), os.getpgid(0))
        with PrepClient(SOURCE, OPS, batch_size=16, runtime_dir=short_dir / "run") as client:
            assert len(list(client)) == 4
        again = cli("start", "-d", "--workers", "1", *where)
        assert again.returncode == exits.ALREADY_RUNNING
        assert f"pid {status['pid']}" in again.stderr
        assert "ready" in (short_dir / "run" / "daemon.log").read_text()
    finally:
        stopped = cli("stop", *where)
    assert stopped.returncode == exits.OK
    wait_until(lambda: not leaks.marked(short_dir.name), why=lambda: leaks.marked(short_dir.name))


def test_a_detached_daemon_that_cannot_start_says_so(short_dir: Path) -> None:
    (short_dir / "c").write_text("")  # a file where the listings should go is no reason; a bad setting is
    config = short_dir / "c.toml"
    config.write_text("chunk_rows = 0\n")
    done = cli("start", "-d", "--runtime-dir", str(short_dir / "run"), "--config", str(config))
    assert done.returncode == exits.USAGE == 2
    assert "chunk_rows" in done.stderr
    assert cli("status", "--runtime-dir", str(short_dir / "run")).returncode == exits.NO_DAEMON


@pytest.mark.parametrize(
    ("arguments", "config", "named"),
    [
        (["--workers", "many"], "", "workers"),
        (["--memory", "lots"], "", "memory"),
        ([], "wrokers = 3\n", "wrokers"),
        ([], "sample_timeout_s = 'x'\n", "sample_timeout_s"),
        ([], "not toml at all", "TOML"),
    ],
)
def test_a_setting_that_cannot_be_is_named(short_dir: Path, arguments: list[str], config: str, named: str) -> None:
    file = short_dir / "c.toml"
    file.write_text(config)
    done = cli("start", "--runtime-dir", str(short_dir / "run"), "--config", str(file), *arguments)
    assert done.returncode == exits.USAGE
    assert named in done.stderr


def test_a_path_too_long_for_a_socket_is_named(short_dir: Path) -> None:
    long = short_dir / ("x" * 100)
    done = cli("start", "--workers", "1", "--runtime-dir", str(long))
    assert done.returncode == exits.NO_PERMISSION
    assert "too long" in done.stderr
    assert "107" in done.stderr


def test_help_documents_the_exit_codes() -> None:
    done = cli("--help")
    assert done.returncode == exits.OK
    assert "3 no daemon runs" in done.stdout
    assert cli().returncode == exits.USAGE
    assert cli("--version").stdout.split()[:2] == ["prepserver", __version__]


def test_a_stopping_daemon_lets_a_job_finish_and_admits_no_other(new_server: NewServer, client_process: Start) -> None:
    server = new_server(workers=2, settings={"drain_s": 600})
    client = client_process(server, SOURCE, batch_size=8)
    got = client.read(1)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not (server.runtime_dir / "attach.sock").exists())
    late = client_process(server, SOURCE, batch_size=8, connect_s=0)
    with pytest.raises(ClientError) as refused:
        late.ask("attach")
    assert refused.value.kind == "NoServer"
    got += client.read()
    assert [index for index, _ in got] == list(range(64))
    assert server.process.poll() is None
    client.ask("close")
    # 600 s may it wait, but there is nobody left to wait for.
    assert server.process.wait(PATIENCE_S) == exits.OK
    server.assert_gone()


def _read_for_ever(client: ClientProcess) -> None:
    while True:
        client.read()


def test_a_stopping_daemon_ends_though_a_job_stays(new_server: NewServer, client_process: Start) -> None:
    server = new_server(workers=2, settings={"drain_s": 0.5})
    client = client_process(server, SOURCE, batch_size=8, reconnect_s=0)
    client.read(1)
    server.look()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE_S) == exits.OK
    assert leaks.marked(server.mark) == {}
    with pytest.raises(ClientError) as gone:
        _read_for_ever(client)  # the rows that lie in its ring are its own
    assert gone.value.kind == "ServerGone"
    assert "prepserver start" in gone.value.text
    client.end()
    server.assert_gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait_for_the_jobs(
    new_server: NewServer, client_process: Start, number: signal.Signals
) -> None:
    server = new_server(workers=2, settings={"drain_s": 600})
    client = client_process(server, SOURCE, batch_size=8)
    client.read(1)
    server.look()
    server.process.send_signal(number)
    wait_until(lambda: not (server.runtime_dir / "attach.sock").exists())
    assert server.process.poll() is None
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE_S) == exits.OK
    assert leaks.marked(server.mark) == {}
    client.end()
    server.assert_gone()
