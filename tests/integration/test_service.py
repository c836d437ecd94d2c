"""The daemon as systemd runs it: a socket that it did not make, readiness, signs of life, settings read again."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prepclient import PrepClient
from prepserver.cli import exits
from prepserver.daemon.ask import ask
from prepserver.pipeline.sources import SyntheticImages
from prepserver.protocol.messages import ATTACH_SOCKET, AskStop, Refused
from tests.support import leaks
from tests.support.clients import OPS, ClientProcess, inline_rows, read
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

SOURCE = SyntheticImages(64, size=48, seed=3)
Start = Callable[..., ClientProcess]


class ServiceManager(Server):
    """A daemon with a listening socket of ours as descriptor 3, and us to notify.

    Attributes:
        listener: The socket; it outlives the daemon.
        config: Its settings' file.
    """

    def __init__(self, *, names: str = "attach", place: Path | None = None, watchdog_s: int = 2) -> None:
        super().__init__(workers=1, settings={"drain_s": 0.2})
        self.runtime_dir.mkdir(mode=0o755)
        self._names = names
        self._watchdog_s = watchdog_s
        self.socket_path = (place or self.runtime_dir) / ATTACH_SOCKET
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(os.fspath(self.socket_path))
        self.listener.listen(64)
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(os.fspath(self.home / "notify"))
        self.config = self.home / "config.toml"

    def launch(self) -> None:
        number = self.listener.fileno()
        # LISTEN_PID names the daemon itself, so the shell becomes it; the socket must be descriptor 3.
        script = f'LISTEN_PID=$$ WATCHDOG_PID=$$ exec "$@" 3<&{number} {number}<&-'
        command = [
            *(sys.executable, "-m", "prepserver.cli", "start", "--runtime-dir", str(self.runtime_dir)),
            *self._arguments,
        ]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", script, "sh", *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(number,),
                env=environment(
                    **{leaks.MARK: self.mark, "LISTEN_FDS": "1", "LISTEN_FDNAMES": self._names},
                    NOTIFY_SOCKET=str(self.home / "notify"), WATCHDOG_USEC=str(self._watchdog_s * 1_000_000),
                ),
            )  # fmt: skip

    def told(self, name: str) -> dict[str, str]:
        """The next message with `name`; those before it are dropped."""
        self._inbox.settimeout(PATIENCE_S)
        while True:
            text = self._inbox.recv(4096).decode()
            message = dict(line.split("=", 1) for line in text.splitlines())
            if name in message:
                return message

    def close(self) -> None:
        self.stop()
        self.listener.close()
        self._inbox.close()
        self.discard()


@pytest.fixture
def service() -> Iterator[ServiceManager]:
    manager = ServiceManager()
    try:
        yield manager
    finally:
        manager.close()


def test_it_says_when_it_is_ready_alive_and_stopping(service: ServiceManager) -> None:
    service.launch()
    assert "workers" in service.told("READY")["STATUS"]
    assert service.told("WATCHDOG")["WATCHDOG"] == "1"
    service.wait_up()
    service.process.send_signal(signal.SIGTERM)
    stopping = service.told("STOPPING")
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 3_200_000  # drain_s and the time to end processes
    assert service.process.wait(PATIENCE_S) == exits.OK


def test_a_socket_that_it_was_given_is_used_and_stays(service: ServiceManager, client_process: Start) -> None:
    inode = service.socket_path.stat().st_ino
    service.start()
    assert service.socket_path.stat().st_ino == inode
    with PrepClient(SOURCE, OPS, batch_size=16, fields="dict", runtime_dir=service.runtime_dir) as client:
        assert sorted(index for index, _ in read(client)) == list(range(64))
    service.stop()
    assert service.socket_path.stat().st_ino == inode
    assert sorted(path.name for path in service.runtime_dir.iterdir()) == [ATTACH_SOCKET, "lock"]


def test_attaching_while_no_daemon_runs_waits_in_the_queue(service: ServiceManager, client_process: Start) -> None:
    """The socket is systemd's; its queue holds the connection."""
    service.start()
    service.stop()
    client = client_process(service, SOURCE, batch_size=16, shuffle=True)
    client.order("read")
    wait_until(lambda: select.select([service.listener], [], [], 0)[0])  # it is in the queue
    service.start()
    assert client.collect() == inline_rows(SOURCE, batch_size=16, shuffle=True)
    client.ask("close")


def test_a_job_outlives_a_restart_and_always_finds_the_socket(service: ServiceManager, client_process: Start) -> None:
    service.start()
    client = client_process(service, SOURCE, batch_size=8, shuffle=True)
    rows = client.read(3)
    service.process.kill()
    service.process.wait(PATIENCE_S)
    service.start()
    rows += client.read()
    assert rows == inline_rows(SOURCE, batch_size=8, shuffle=True)
    client.ask("close")


def test_a_successor_is_told_that_the_service_manager_restarts(service: ServiceManager) -> None:
    service.start()
    answer = ask(service.socket_path, AskStop(successor=True), PATIENCE_S)
    assert isinstance(answer, Refused)
    assert "systemctl restart" in answer.text
    assert service.status()["state"] == "running"


def test_workers_do_not_hold_the_socket(service: ServiceManager) -> None:
    service.start()
    inode = os.fstat(service.listener.fileno()).st_ino
    holders = [
        pid for pid in leaks.marked(service.mark)
        if any(os.readlink(link) == f"socket:[{inode}]" for link in Path(f"/proc/{pid}/fd").iterdir())
    ]  # fmt: skip
    assert holders == [service.pid]


def test_a_socket_in_another_place_is_refused_with_both_places(tmp_path: Path) -> None:
    place = Path(os.path.realpath(tmp_path)) / "elsewhere"
    place.mkdir()
    service = ServiceManager(place=place)
    try:
        service.launch()
        assert service.process.wait(PATIENCE_S) == exits.USAGE
        assert str(service.socket_path) in service.log()
        assert str(service.runtime_dir / ATTACH_SOCKET) in service.log()
        assert "ListenSequentialPacket=" in service.log()
    finally:
        service.close()


def test_sockets_for_another_process_are_left_alone() -> None:
    # As when a shell that was activated starts the daemon: the variables are there, the sockets are not for it.
    done = cli("status", "--runtime-dir", "/nonexistent", LISTEN_FDS="1", LISTEN_PID="1")
    assert done.returncode == exits.NO_DAEMON


def test_a_reload_applies_settings_and_names_those_that_wait(service: ServiceManager) -> None:
    service.start()
    before = service.status()["memory"]["budget_bytes"]
    service.config.write_text('memory = "64M"\nworkers = 3\nlog_level = "debug"\ndrain_s = 0.2\n')
    service.process.send_signal(signal.SIGHUP)
    assert int(service.told("RELOADING")["MONOTONIC_USEC"]) > 0
    service.told("READY")
    assert before != service.status()["memory"]["budget_bytes"] == 64 << 20
    assert "reloaded: memory_bytes, log_level" in service.log()
    assert len(service.status()["workers"]) == 1


def test_a_reload_of_settings_that_cannot_be_changes_nothing(service: ServiceManager) -> None:
    service.start()
    before = service.status()["memory"]["budget_bytes"]
    service.config.write_text('memory = "lots"\n')
    service.process.send_signal(signal.SIGHUP)
    service.told("RELOADING")
    service.told("READY")
    assert service.status()["memory"]["budget_bytes"] == before
    assert "memory = 'lots'" in service.log()
    with PrepClient(SOURCE, OPS, batch_size=16, runtime_dir=service.runtime_dir) as client:
        assert len(client) == 4
