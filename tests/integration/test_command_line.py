"""``prepserver start | status | stop`` as scripts and people use them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prepclient import Joining, PrepClient, Sharding, SyntheticImages
from prepserver import __version__
from prepserver.cli import exits
from prepserver.cli.ask import AskError, ask_status
from prepserver.daemon.runtime_dir import holder
from prepserver.protocol.messages import ATTACH_SOCKET
from tests.support import leaks
from tests.support.clients import OPS, ClientError, ClientProcess
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., ClientProcess]
NewServer = Callable[..., Server]
SOURCE = SyntheticImages(64, 32)


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


def test_status_in_a_pipe_has_one_whole_line_per_job(server: Server, client_process: Start) -> None:
    """It names workers, jobs and streams, without colour codes."""
    name = "a-sweep-over-learning-rates/with-a-name-that-is-far-too-long-for-eighty-columns/run-0042"
    client_process(server, SOURCE, batch_size=16, job=name).read(1)
    done = cli("status", "--runtime-dir", str(server.runtime_dir), COLUMNS="80")
    assert (done.returncode, done.stderr) == (exits.OK, "")
    for word in (f"pid {server.pid}", str(server.runtime_dir), "workers", "jobs", "streams", "sharing"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout
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
    wait_until(lambda: job()["epoch"] == 1, why=job)
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


@pytest.mark.parametrize("has_come", [False, True])
def test_status_says_that_a_rank_waits_for_another(server: Server, client_process: Start, has_come: bool) -> None:
    source = SyntheticImages(4096, 32)
    ranks = [client_process(server, source, batch_size=8, job="ranks", sharding=Sharding(rank, 2)) for rank in range(2)]
    for client in ranks[: 1 + has_come]:
        client.ask("attach")
    if has_come:
        ranks[1].read(1)
    reader = threading.Thread(target=ranks[0].read)
    reader.start()

    def waits() -> dict[int, str | None]:
        return {job["rank"]: job["waits_for"] for job in server.status()["jobs"]}

    try:
        wait_until(lambda: waits()[0] == "ranks", why=waits)
        assert waits().get(1) is None
    finally:
        ranks[1].ask("attach")
        ranks[1].end()  # so that the other one can go on, and its thread end
        reader.join(PATIENCE_S)


def test_top_in_a_pipe_prints_until_its_reader_goes(server: Server) -> None:
    command = [sys.executable, "-m", "prepserver.cli", "top", "--json", "--every", "0.1"]
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


def test_top_in_a_pipe_ends_quietly_on_ctrl_c_or_daemon_exit(new_server: NewServer) -> None:
    server = new_server(workers=1)
    command = [sys.executable, "-m", "prepserver.cli", "top", "--json", "--every", "0.1", "--runtime-dir"]
    for by_hand, code in ((True, exits.OK), (False, exits.NO_DAEMON)):
        with subprocess.Popen(
            [*command, str(server.runtime_dir)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(2):  # the second time that it is shown, it is not being started any more
                assert process.stdout.readline()
            (process if by_hand else server.process).send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == code
            said = process.stderr.read()
            assert said == "" if by_hand else re.search("no daemon runs|or about to end", said)


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


_CLOSED = """import os, sys
os.close(0)
os.close(1)
os.execv(sys.executable, [sys.executable, "-m", "prepserver.cli", *sys.argv[1:]])
"""


def test_a_daemon_with_closed_stdin_and_stdout_serves(new_server: NewServer) -> None:
    server = new_server(workers=1, program=("-c", _CLOSED))
    with PrepClient(SyntheticImages(8), OPS, batch_size=4, runtime_dir=server.runtime_dir) as client:
        assert sum(1 for _ in client) == 2
    assert "Traceback" not in server.log()


def test_a_detached_daemon_is_ready_on_return_and_stop_ends_it(short_path: Path) -> None:
    where = ("--runtime-dir", str(short_path / "run"))
    done = cli(
        "start",
        "-d",
        "--workers",
        "1",
        "--cache-dir",
        str(short_path / "cache"),
        *where,
        **{leaks.MARK: short_path.name},
    )
    try:
        assert done.returncode == exits.OK, done.stderr
        status = json.loads(cli("status", "--json", *where).stdout)
        assert os.getsid(status["pid"]) not in (os.getsid(0), os.getpgid(0))
        with PrepClient(SOURCE, OPS, batch_size=16, runtime_dir=short_path / "run") as client:
            assert len(list(client)) == 4
        again = cli("start", "-d", "--workers", "1", *where)
        assert again.returncode == exits.ALREADY_RUNNING
        assert f"pid {status['pid']}" in again.stderr
        assert "ready" in (short_path / "run" / "daemon.log").read_text()
    finally:
        stopped = cli("stop", *where)
    assert stopped.returncode == exits.OK
    assert sorted(path.name for path in (short_path / "run").iterdir()) == ["daemon.log", "lock"]
    assert cli("status", *where).returncode == exits.NO_DAEMON
    wait_until(lambda: not leaks.marked(short_path.name), why=lambda: leaks.marked(short_path.name))


def test_a_detached_daemon_that_cannot_start_says_so(short_path: Path) -> None:
    config = short_path / "c.toml"
    config.write_text("chunk_rows = 0\n")
    done = cli("start", "-d", "--runtime-dir", str(short_path / "run"), "--config", str(config))
    assert done.returncode == exits.USAGE == 2
    assert "chunk_rows" in done.stderr
    where = ("--runtime-dir", str(short_path / "run"), "--cache-dir", str(short_path / "cache"))
    late = cli("start", "-d", "--workers", "1", "--plugin", "no_such_module", *where)
    assert late.returncode == exits.FAILED
    assert "the daemon did not start: plug-in 'no_such_module' cannot be imported" in late.stderr
    assert f"(see {short_path}/run/daemon.log)" in late.stderr
    assert cli("status", "--runtime-dir", str(short_path / "run")).returncode == exits.NO_DAEMON


def test_a_detached_daemon_needs_no_folder_and_no_command(short_path: Path) -> None:
    """The command was killed before the daemon was ready, and named its configuration by a relative path."""
    run, folder, config = short_path / "run", short_path / "here", short_path / "c.toml"
    folder.mkdir()
    config.write_text("workers = 1\n")
    arguments = ["start", "-d", "--config", "../c.toml", "--runtime-dir", "../run", "--cache-dir", "../cache"]
    command = subprocess.Popen([sys.executable, "-m", "prepserver.cli", *arguments], cwd=folder, env=environment())
    wait_until(lambda: holder(run) not in (None, command.pid))
    command.kill()
    command.wait()
    where = ("--runtime-dir", str(run))
    try:
        wait_until(lambda: cli("status", *where).returncode == exits.OK)
        folder.rmdir()
        pid = json.loads(cli("status", "--json", *where).stdout)["pid"]
        (zygote,) = leaks.children(pid)
        os.kill(zygote, signal.SIGKILL)
        config.write_text('workers = 1\nmemory = "64M"\n')
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: "reloaded: memory" in (run / "daemon.log").read_text())
        with PrepClient(SOURCE, OPS, batch_size=16, runtime_dir=run) as client:
            assert len(list(client)) == 4
    finally:
        stopped = cli("stop", *where)
    assert stopped.returncode == exits.OK


def test_a_daemon_whose_socket_was_removed_is_named(server: Server) -> None:
    pid, attach_socket = server.status()["pid"], server.runtime_dir / "attach.sock"
    attach_socket.rename(server.runtime_dir / "elsewhere")
    for command in ("status", "stop"):
        done = cli(command, "--runtime-dir", str(server.runtime_dir))
        assert done.returncode == exits.NO_DAEMON
        assert f"(pid {pid}) does not listen: " in done.stderr
        assert f"`kill {pid}` ends it" in done.stderr
    (server.runtime_dir / "elsewhere").rename(attach_socket)


def test_a_daemon_that_hangs_is_named_with_its_pid(server: Server) -> None:
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(AskError) as said:
            ask_status(str(server.runtime_dir), 1.0)
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert f"did not answer within 1 s: it hangs or is stopped. If that lasts, `kill {server.pid}`" in str(said.value)
    assert f"`kill -9 {server.pid}`" in str(said.value)


def test_a_socket_without_a_daemon_behind_it_names_its_service(short_path: Path) -> None:
    """As systemd's, whose service is starting or cannot start."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fspath(short_path / ATTACH_SOCKET))
        listener.listen()
        with pytest.raises(AskError, match=r"did not answer within 0\.1 s.*`systemctl status prepserver.service`"):
            ask_status(str(short_path), 0.1)


def test_a_failed_command_is_an_error_to_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        status = os.fstat(stderr.fileno())
        subprocess.run(
            [sys.executable, "-m", "prepserver.cli", "start", "--config", "/no/such"], stderr=stderr, check=False,
            timeout=PATIENCE_S, env=environment(JOURNAL_STREAM=f"{status.st_dev}:{status.st_ino}"),
        )  # fmt: skip
    assert (tmp_path / "stderr").read_text().startswith("<3>prepserver start: --config /no/such")


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs a PID namespace")
@pytest.mark.parametrize("is_apart", ["daemon", "command"])
@pytest.mark.parametrize("has_pidfds", [True, False])
def test_stop_waits_for_a_daemon_of_another_pid_namespace(
    is_apart: str, has_pidfds: bool, client_process: Start
) -> None:
    """Also before Linux 6.5, where no socket gives a pidfd."""
    apart = ("unshare", "-mpf", "--mount-proc", "--kill-child")
    with Server(workers=1, settings={"drain_s": 1.0}, within=apart if is_apart == "daemon" else ()) as server:
        client = client_process(server, SOURCE, batch_size=16, reconnect_s=0.0)
        client.read(1)
        old = "" if has_pidfds else "import prepserver.daemon.attach as a; a._SO_PEERPIDFD = -1; "
        program = f"{old}from prepserver.cli import main; raise SystemExit(main())"
        command = [*(apart if is_apart == "command" else ()), sys.executable, "-c", program, "stop"]
        done = subprocess.run(
            [*command, "--runtime-dir", str(server.runtime_dir)], env=environment(), capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert holder(server.runtime_dir) is None, "it has ended, and had a second to give to the job"
        assert (done.returncode, done.stderr) == (exits.OK, "")
        assert server.process.wait(PATIENCE_S) == exits.OK
        client.end()


@pytest.mark.parametrize("group", ["99999999999", "4294967295"])
def test_a_group_that_cannot_be_is_named(short_path: Path, group: str) -> None:
    (short_path / "c.toml").write_text(f"socket_group = {group}\n")
    where = ("--runtime-dir", str(short_path / "run"), "--config", str(short_path / "c.toml"))
    done = cli("start", "--workers", "1", *where)
    assert done.returncode == exits.USAGE
    assert f"socket_group = {group}: must be below 4294967295" in done.stderr


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


def test_the_daemon_of_a_process_does_not_wait_for_the_jobs(new_server: NewServer, client_process: Start) -> None:
    """Its owner ends it when no job is left. Two signals for that could merge into one."""
    server = new_server(workers=1, settings={"drain_s": 600}, arguments=["--lifeline", str(os.getpid())])
    client = client_process(server, SOURCE, batch_size=8)
    client.read(1)
    server.look()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE_S) == exits.OK
    client.end()
    server.assert_gone()


def test_signals_that_a_scheduler_sends_to_all_steps_end_nothing(server: Server, client_process: Start) -> None:
    """Such as Slurm's ``--signal=USR1``."""
    before = leaks.marked(server.mark)
    assert len(before) == 4  # the daemon, the zygote, two workers
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        for pid in before:
            os.kill(pid, number)
    client = client_process(server, SOURCE, batch_size=16)
    assert len(client.read()) == 64
    client.end()
    assert before.keys() <= leaks.marked(server.mark).keys()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_ends_a_daemon_that_starts(number: signal.Signals) -> None:
    with contextlib.ExitStack() as stack:
        server = Server(workers=1)
        stack.push(server)
        server.launch()
        wait_until(lambda: leaks.children(server.pid))
        for pid in (server.zygote, server.pid):
            os.kill(pid, number)
        assert server.process.wait(PATIENCE_S) == exits.OK
        assert "Traceback" not in server.log()


def test_start_check_judges_the_settings_and_starts_nothing(short_path: Path) -> None:
    config = short_path / "config.toml"
    for text, code, said in (
        (f"cache_dir = '{short_path}/none'\nmemory = '64M'", exits.OK, "a daemon can start with these settings"),
        ("memory = 16", exits.USAGE, "memory"),
        ("socket_group = 'nobody here'", exits.USAGE, "this machine has no such group"),
        (f"cache_dir = '{config}'", exits.USAGE, "is not a folder"),
    ):
        config.write_text(text)
        ended = cli("start", "--check", "--config", str(config), "--runtime-dir", str(short_path / "run"))
        assert ended.returncode == code, ended
        assert said in ended.stdout + ended.stderr
    config.write_text("workers = 64")
    command = f"ulimit -n 256; exec {sys.executable} -m prepserver.cli start --check --config {config}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == exits.USAGE
    assert "256 open files is too low for 64 workers" in ended.stderr
    assert sorted(path.name for path in short_path.iterdir()) == ["config.toml"]


def test_start_check_leaves_doubts_to_a_daemon_that_runs(server: Server, short_path: Path) -> None:
    """It has taken memory that counts as free for itself; `systemctl reload` checks first."""
    for place, doubts in ((server.runtime_dir, False), (short_path, True)):
        ended = cli("start", "--check", "--memory", "1M", "--runtime-dir", str(place))
        assert ended.returncode == exits.OK
        assert ("warning: memory = 1.0 MiB: " in ended.stderr) is doubts
