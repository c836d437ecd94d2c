"""However many connect, and whatever they send, the daemon lives, the honest job runs on, and others get in."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from prepserver.cli import exits
from prepserver.protocol import zmtp
from prepserver.protocol.codec import encode
from prepserver.protocol.messages import AskStatus, Refused, Status, Sync
from tests.support import leaks
from tests.support.clients import ClientProcess, inline_rows
from tests.support.honest import SOURCE, SPEC, honest_reader
from tests.support.hostile import Attached, Stranger
from tests.support.server import Server, cli
from tests.support.waiting import PATIENCE_S, wait_until

DAEMON, HOSTILE, OTHER, SILENT = 60990, 60991, 60992, 60993
LIMIT = 256
"""Open files that the daemon may have: 31 connections."""

SHARE = 15
CROWD = 1500
MOST_GROWTH_BYTES = 64 << 20
"""Far above what a flood leaves behind, and far below what it sends."""

Start = Callable[..., ClientProcess]

pytestmark = [pytest.mark.fault, pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")]


class SmallServer(Server):
    """A daemon with few descriptors, to which everybody may connect."""

    def __init__(self, limit: int = LIMIT, within: Sequence[str] = ()) -> None:
        within = ("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *within)
        super().__init__(workers=1, settings={"socket_mode": "0666", "drain_s": 0.2}, within=within)
        self.home.chmod(0o711)

    def start(self) -> SmallServer:
        super().start()
        self.runtime_dir.chmod(0o711)
        return self


@pytest.fixture(scope="module")
def small_server() -> Iterator[SmallServer]:
    with SmallServer() as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def silent(small_server: SmallServer) -> Iterator[Stranger]:
    """A connection that asks nothing."""
    with Stranger(small_server, uid=SILENT) as stranger:
        stranger.say(b"")
        yield stranger


@pytest.fixture
def honest(small_server: SmallServer) -> Iterator[Callable[[], None]]:
    """A client in mid-epoch; calling it reads on. At the end its whole epoch must have been right."""
    with honest_reader(small_server) as read_on:
        yield read_on


@pytest.fixture(autouse=True)
def room_for_a_crowd() -> Iterator[None]:
    """The tests' own descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CROWD + 200:
        pytest.skip(f"at most {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CROWD + 200), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def assert_others_get_in(server: Server) -> None:
    with Attached(server, SOURCE, uid=OTHER, job="newcomer") as newcomer:
        assert newcomer.welcome.samples == SOURCE.n


def gets_in(server: Server, uid: int) -> bool:
    with Stranger(server, uid=uid) as stranger:
        try:
            stranger.send(encode(AskStatus()))
        except AssertionError:  # it got a refusal in place of its line
            return False
        return isinstance(stranger.receive(), Status)


def test_a_crowd_that_says_nothing_locks_nobody_out(
    small_server: SmallServer, honest: Callable[[], None], client_process: Start
) -> None:
    with contextlib.ExitStack() as crowd:
        for number in range(CROWD):
            crowd.enter_context(Stranger(small_server, uid=HOSTILE))
            if number % 300 == 0:
                honest()
        wait_until(lambda: sum(leaks.fds(small_server.pid).values()) < LIMIT - 64, why=small_server.log)
        spec: dict[str, Any] = SPEC | {"seed": 8}
        newcomer = client_process(small_server, SOURCE, uid=OTHER, **spec)
        assert newcomer.read() == inline_rows(SOURCE, **spec)
        newcomer.ask("close")


def test_garbage_leaves_no_connection_and_few_lines_in_the_log(
    small_server: SmallServer, honest: Callable[[], None]
) -> None:
    before = small_server.settled()
    for _ in range(200):
        with Stranger(small_server, uid=HOSTILE) as stranger:
            stranger.send(b"\xc1\n\x1b[2J garbage")
            assert isinstance(stranger.receive(), Refused)
    honest()
    wait_until(lambda: small_server.look().fds <= before.fds, why=small_server.log)
    assert small_server.log().count("on the attach socket") < 200
    wait_until(lambda: f"more warnings about uid {HOSTILE} were not logged" in small_server.log())
    assert_others_get_in(small_server)


def test_jobs_of_one_user_leave_places_for_others(small_server: SmallServer, honest: Callable[[], None]) -> None:
    with contextlib.ExitStack() as jobs:
        for number in range(SHARE):
            jobs.enter_context(Attached(small_server, SOURCE, uid=HOSTILE, job=f"job {number}"))
        for _ in range(40):
            with Stranger(small_server, uid=HOSTILE) as one_more:
                refused = one_more.receive()
            assert isinstance(refused, Refused)
            assert refused.code == "busy"
            assert f"uid {HOSTILE} has {SHARE} connections" in refused.text
        honest()
        assert_others_get_in(small_server)


def test_nobody_but_the_attached_can_reach_a_control_line(
    small_server: SmallServer, honest: Callable[[], None]
) -> None:
    with Attached(small_server, SOURCE, uid=HOSTILE):
        sockets = [path.name for path in small_server.runtime_dir.iterdir() if path.is_socket()]
        assert sockets == ["attach.sock"]
    honest()


PART = b"\x03" + struct.pack(">Q", 60_000) + bytes(60_000)
FLOODS = {
    "one message of endless large parts": PART * 10,
    "one message of endless empty parts": b"\x01\x00" * 100_000,
    "messages of two parts": b"\x01\x01a\x00\x01b" * 50_000,
    "messages as large as may be": (b"\x02" + PART[1:]) * 10,
    "no ZeroMQ": b"\xff" * 100_000,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_costs_no_memory_and_ends_its_own_job_only(
    small_server: SmallServer, honest: Callable[[], None], flood: bytes
) -> None:
    before = leaks.resident_bytes(small_server.pid)
    with Attached(small_server, SOURCE, uid=HOSTILE) as liar, contextlib.suppress(ConnectionError, TimeoutError):
        assert liar.said is not None
        liar.said.settimeout(0.5)  # nobody reads it any more
        for _ in range((256 << 20) // len(flood)):
            liar.say(flood)
            assert leaks.resident_bytes(small_server.pid) < before + MOST_GROWTH_BYTES
    honest()
    assert_others_get_in(small_server)


def test_a_client_that_asks_and_never_reads_costs_no_memory(
    small_server: SmallServer, honest: Callable[[], None]
) -> None:
    words = zmtp.frame(encode(Sync(0))) * 2000
    with Attached(small_server, SOURCE, uid=HOSTILE) as deaf:
        deaf.say(words)
        before = leaks.resident_bytes(small_server.pid)
        for number in range(50):
            deaf.say(words)
            if number % 10 == 0:
                honest()
        assert leaks.resident_bytes(small_server.pid) < before + MOST_GROWTH_BYTES
        assert "stranger" in [job["name"] for job in small_server.status()["jobs"]]
        assert_others_get_in(small_server)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not on this machine")
def test_descriptors_left_unread_lock_nobody_else_out() -> None:
    # Not as root, for whom the kernel counts no descriptors on their way. The packages may be in root's folder.
    read = "+dac_read_search"
    within = ("setpriv", f"--reuid={DAEMON}", f"--regid={DAEMON}", "--clear-groups", f"--bounding-set=-all,{read}")
    server = SmallServer(within=(*within, f"--inh-caps={read}", f"--ambient-caps={read}"))
    for path in (server.home, server.home / "config.toml"):
        os.chown(path, DAEMON, DAEMON)
    with server, contextlib.ExitStack() as crowd:
        for _ in range(2 * LIMIT):
            stranger = crowd.enter_context(Stranger(server, uid=HOSTILE))
            with contextlib.suppress(OSError):
                stranger.sock.send(b"garbage, so that it is dropped at once")
        assert_others_get_in(server)
        crowd.close()
        wait_until(lambda: gets_in(server, HOSTILE), why=server.log)


def test_a_limit_that_holds_no_clients_is_refused_at_the_start() -> None:
    with contextlib.ExitStack() as stack:
        server = SmallServer(limit=80)
        stack.push(server)
        server.launch()
        assert server.process.wait(PATIENCE_S) == exits.USAGE
        assert "the limit of 80 open files is too low for 1 worker and 4 clients" in server.log()


def test_names_forge_no_line_in_the_log(small_server: SmallServer, tmp_path: Path) -> None:
    forged = "x\nFORGED \x1b[2J"
    for change in ({"job": forged}, {"source": {"source": "ImageFolder", "root": f"/nowhere/{forged}"}}):
        with Stranger(small_server) as stranger:
            stranger.send_map({**stranger.attach(SOURCE), **change})
            while not isinstance(stranger.receive(), Refused):
                pass
    assert "\x1b" not in small_server.log()
    assert not [line for line in small_server.log().splitlines() if line.startswith("FORGED")]


def test_one_who_asks_nothing_is_hung_up_on(silent: Stranger) -> None:
    """It was there from the beginning: it takes a while."""
    refused = silent.receive()
    assert isinstance(refused, Refused)
    assert refused.code == "busy"
    assert silent.receive() is None


def test_out_of_descriptors_the_daemon_says_so_and_does_not_spin(small_server: SmallServer) -> None:
    small_server.settled()
    # Whatever has taken them: here the limit is lowered to the first number that is free.
    held = set()
    for path in Path(f"/proc/{small_server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            if not os.readlink(path).startswith(("/proc/", "/sys/")):  # read for a moment
                held.add(int(path.name))
    free = next(number for number in range(LIMIT) if number not in held)
    resource.prlimit(small_server.pid, resource.RLIMIT_NOFILE, (free, LIMIT))
    with Stranger(small_server, uid=HOSTILE) as stranger:
        refused = stranger.receive()
    resource.prlimit(small_server.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    assert isinstance(refused, Refused)
    assert refused.code == "busy"
    assert "out of descriptors" in refused.text
    assert small_server.status()["state"] == "running"


def test_one_who_gets_no_line_is_told_why(small_server: SmallServer) -> None:
    in_the_way = small_server.runtime_dir / "line.sock"
    in_the_way.touch()
    with Stranger(small_server, uid=OTHER) as stranger:
        refused = stranger.receive()
    in_the_way.unlink()
    assert isinstance(refused, Refused)
    assert refused.code == "busy"
    assert "Address already in use" in refused.text
    assert "Address already in use" in small_server.log()


def test_a_daemon_that_is_ending_takes_any_number_of_signals(small_server: SmallServer) -> None:
    process = small_server.process
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.001)
    assert process.returncode == exits.OK


def test_jobs_in_all_places_leave_one_for_status_and_stop() -> None:
    with SmallServer(limit=64 + 6 + 6 * 5) as server, contextlib.ExitStack() as jobs:
        for number in range(5):
            jobs.enter_context(Attached(server, SOURCE, job=f"job {number}"))
        more = jobs.enter_context(Attached(server, SOURCE, job="one too many"))
        assert isinstance(more.welcome, Refused)
        assert "5 connections" in more.welcome.text
        asked = cli("status", "--json", "--runtime-dir", str(server.runtime_dir))
        assert len(json.loads(asked.stdout)["jobs"]) == 5
        assert cli("stop", "--runtime-dir", str(server.runtime_dir)).returncode == exits.OK
        server.process.wait(PATIENCE_S)
