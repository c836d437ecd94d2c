"""The daemon as systemd runs it: a socket that it did not make, readiness, signs of life, settings read again."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import PrepClient
from prepserver.cli import exits
from prepserver.daemon.ask import ask
from prepserver.pipeline.sources import SyntheticImages
from prepserver.protocol.messages import ATTACH_SOCKET, AskStatus, AskStop, Refused
from tests.support import leaks
from tests.support.clients import OPS, ClientProcess, inline_rows
from tests.support.server import Server, cli
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

    def __init__(self, place: Path | None = None) -> None:
        super().__init__(workers=1, settings={"drain_s": 0.2})
        self.runtime_dir.mkdir(mode=0o755)
        self.socket_path = (place or self.runtime_dir) / ATTACH_SOCKET
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(os.fspath(self.socket_path))
        self.listener.listen(64)
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(os.fspath(self.home / "notify"))
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()
        self.config = self.home / "config.toml"
        # LISTEN_PID names the daemon itself, so the shell becomes it; the socket must be descriptor 3.
        (number,) = self._pass_fds = (self.listener.fileno(),)
        self._within = ["bash", "-c", f'LISTEN_PID=$$ WATCHDOG_PID=$$ exec "$@" 3<&{number} {number}<&-', "sh"]
        self._env |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "attach", "WATCHDOG_USEC": "2000000"}
        self._env["NOTIFY_SOCKET"] = str(self.home / "notify")

    def told(self, name: str) -> dict[str, str]:
        """The next message with `name`; those before it are dropped."""
        while name not in (
            message := dict(line.split("=", 1) for line in self._said.get(timeout=PATIENCE_S).splitlines())
        ):
            pass
        return message

    def forget(self) -> None:
        """Drops what it has said so far."""
        while not self._said.empty():
            self._said.get()

    def _listen(self) -> None:
        # All the time: the daemon waits where the queue of this socket is full.
        while data := self._inbox.recv(4096):
            self._said.put(data.decode())

    def __exit__(self, *_: object) -> None:
        with self.listener, self._inbox:
            super().__exit__()
            self._inbox.shutdown(socket.SHUT_RD)
            self._reader.join()


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceManager]:
    """Runs before and after each test."""
    with ServiceManager() as manager:
        yield manager


def test_jobs_find_the_socket_whether_the_daemon_runs_or_not(service: ServiceManager, client_process: Start) -> None:
    """It is systemd's: its queue holds connections made between two daemons."""
    inode = service.socket_path.stat().st_ino
    spec: dict[str, Any] = {"batch_size": 8, "shuffle": True}
    stays = client_process(service, SOURCE, **spec)
    rows = stays.read(3)
    service.kill()
    service.start()
    rows += stays.read()
    assert rows == inline_rows(SOURCE, **spec)
    stays.ask("close")
    service.forget()
    service.process.send_signal(signal.SIGTERM)
    stopping = service.told("STOPPING")
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 3_200_000  # drain_s and the time to end processes
    assert service.process.wait(PATIENCE_S) == exits.OK
    service.assert_gone()
    assert sorted(path.name for path in service.runtime_dir.iterdir()) == [ATTACH_SOCKET, "lock"]
    comes = client_process(service, SOURCE, **spec)
    comes.order("read")
    wait_until(lambda: select.select([service.listener], [], [], 0)[0])  # it is in the queue
    service.start()
    assert comes.collect() == rows
    comes.ask("close")
    assert service.socket_path.stat().st_ino == inode
    assert service.told("READY")["STATUS"] == "1 worker, no jobs"
    assert service.told("WATCHDOG")["WATCHDOG"] == "1"


def test_stop_says_that_the_socket_stays(service: ServiceManager) -> None:
    done = cli("stop", "--runtime-dir", str(service.runtime_dir))
    assert done.returncode == exits.OK
    assert re.search(r"attach\.sock still takes connections\. If it is systemd's, .*systemctl stop", done.stderr)


def test_nobody_hears_of_clients_that_gave_up_waiting(service: ServiceManager) -> None:
    service.kill()
    with pytest.raises(TimeoutError):  # as `prepserver status` while the daemon starts
        ask(service.socket_path, AskStatus(), 0.05)
    service.start()
    assert service.status()["state"] == "running"
    assert "turned away" not in service.log()


def test_a_successor_is_told_that_the_service_manager_restarts(service: ServiceManager) -> None:
    answer = ask(service.socket_path, AskStop(successor=True), PATIENCE_S)
    assert isinstance(answer, Refused)
    assert "systemctl restart" in answer.text
    assert service.status()["state"] == "running"


def test_workers_do_not_hold_the_socket(service: ServiceManager) -> None:
    inode = os.fstat(service.listener.fileno()).st_ino
    holders = [pid for pid in leaks.marked(service.mark) if f"socket:[{inode}]" in leaks.links(pid)]
    assert holders == [service.pid]


def test_a_socket_in_another_place_is_refused_with_both_places(short_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        service = ServiceManager(short_path)
        stack.push(service)
        service.launch()
        assert service.process.wait(PATIENCE_S) == exits.USAGE
        for said in (service.socket_path, service.runtime_dir / ATTACH_SOCKET, "ListenSequentialPacket="):
            assert str(said) in service.log()


def test_sockets_for_another_process_are_left_alone() -> None:
    # As when a shell that was activated starts the daemon: the variables are there, the sockets are not for it.
    done = cli("status", "--runtime-dir", "/nonexistent", LISTEN_FDS="1", LISTEN_PID="1")
    assert done.returncode == exits.NO_DAEMON


def test_a_reload_applies_settings_and_names_those_that_wait(service: ServiceManager) -> None:
    before = service.status()["memory"]["budget_bytes"]
    text = 'memory = "64M"\nworkers = 3\nlog_level = "debug"\ndrain_s = 0.2\n[sources]\nroots = ["/no/such"]\n'
    service.config.write_text(text)
    service.forget()
    service.process.send_signal(signal.SIGHUP)
    assert int(service.told("RELOADING")["MONOTONIC_USEC"]) > 0
    service.told("READY")
    assert before != service.status()["memory"]["budget_bytes"] == 64 << 20
    assert "reloaded: memory, log_level" in service.log()
    assert "cannot see root /no/such" in service.log()
    assert len(service.status()["workers"]) == 1


@pytest.mark.parametrize(
    ("memory", "said"),
    [("lots", "memory = 'lots'"), ("1K", "memory = '1K': must be from 16K"), ("900000G", "memory = 900000.0 GiB")],
)
def test_a_reload_of_settings_that_cannot_be_changes_nothing(service: ServiceManager, memory: str, said: str) -> None:
    """What `prepserver start` refuses on this machine is refused, too."""
    before = service.status()["memory"]["budget_bytes"]
    service.config.write_text(f'memory = "{memory}"\n')
    service.forget()
    service.process.send_signal(signal.SIGHUP)
    service.told("RELOADING")
    service.told("READY")
    assert service.status()["memory"]["budget_bytes"] == before
    assert re.search(rf"reload: .*{re.escape(said)}.*\. Everything stays as it was", service.log())
    with PrepClient(SOURCE, OPS, batch_size=16, runtime_dir=service.runtime_dir) as client:
        assert len(client) == 4
