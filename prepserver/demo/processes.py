"""The demo's child processes: its daemon and its training jobs. None outlives the demo."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prepserver.daemon.ask import ask
from prepserver.protocol.messages import ATTACH_SOCKET, AskStatus

_START_S = 60.0
_STOP_S = 10.0
_ANSWER_S = 5.0
_LOG_TAIL_BYTES = 2000
_LONGEST_BASE = 60  # bytes; a socket's path has at most 107
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class DemoFailure(RuntimeError):
    """The demo cannot continue; the text says why."""


class Report(NamedTuple):
    """A job's progress at `at_s` (monotonic): images so far, and its latest loss."""

    at_s: float
    images: int
    loss: float
    first_batch_s: float


class TrainingJob:
    """One process of `prepserver.demo.train`, which reads `config` and writes its stderr to `log_path`."""

    def __init__(self, name: str, config: dict[str, Any], log_path: Path) -> None:
        self.name = name
        self.device = ""  # where it trains; empty until it is ready
        self.reports: list[Report] = []  # oldest first
        self._log_path = log_path
        self._unread = b""
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        with theirs:
            self.process = _start("prepserver.demo.train", [], log_path, stdin=theirs, stdout=theirs)
        self.tell(json.dumps(config))

    def fileno(self) -> int:
        """Readable when the job has written something."""
        return self._sock.fileno()

    def tell(self, line: str) -> None:
        """Writes a line to its stdin."""
        try:
            self._sock.send(line.encode() + b"\n")
        except ConnectionError:
            raise self._ended() from None

    def read(self) -> None:
        """Reads what the job has written; raises `DemoFailure` if it has failed or ended."""
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            raise self._ended()
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            match json.loads(line):
                case {"device": device}:
                    self.device = device
                case {"failed": why}:
                    raise DemoFailure(f"training {self.name} failed: {why}")
                case report:
                    self.reports.append(Report(**report))

    def images_between(self, start_s: float, stop_s: float) -> float:
        """Images that the job received in that time, interpolated linearly between reports."""
        times_s, images = [r.at_s for r in self.reports], [r.images for r in self.reports]
        before, after = np.interp((start_s, stop_s), times_s, images)
        return float(after - before)

    def hang_up(self) -> None:
        """Ends the job after its current batch."""
        self._sock.close()

    def _ended(self) -> DemoFailure:
        return DemoFailure(f"training {self.name} ended early: {_tail(self._log_path)}")


@contextlib.contextmanager
def training_jobs(configs: list[dict[str, Any]], scratch: Path) -> Iterator[list[TrainingJob]]:
    """Runs a job for each configuration."""
    jobs: list[TrainingJob] = []
    try:
        for number, config in enumerate(configs, 1):
            jobs.append(TrainingJob(f"job {number}", config, scratch / f"job-{config['kind']}-{number}.log"))
        yield jobs
    finally:
        for job in jobs:
            job.hang_up()
        for job in jobs:
            _wait(job.process)


class DemoServer(NamedTuple):
    """A running daemon: its pid, its attach socket, and the seconds until it listened."""

    pid: int
    attach_socket: Path
    start_s: float

    def status(self) -> dict[str, Any]:
        """The daemon's state; raises as `ask` does."""
        return dict(ask(self.attach_socket, AskStatus(), _ANSWER_S))

    def rows(self) -> tuple[int, int]:
        """Rows (made, delivered) of the streams that run now; (0, 0) if the daemon does not answer."""
        try:
            streams = self.status()["streams"]
        except (OSError, ValueError, TypeError):  # a refusal has no streams
            return 0, 0
        return sum(s["rows_filled"] for s in streams), sum(s["rows_delivered"] for s in streams)


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder whose path is short enough for the sockets in it."""
    base = tempfile.gettempdir()
    base = base if len(base) <= _LONGEST_BASE else "/tmp"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=base, ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextlib.contextmanager
def running_server(scratch: Path, more: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[DemoServer]:
    """A daemon with files in `scratch` and `more` arguments; a `DemoFailure` has the end of its log if it fails."""
    runtime_dir, log_path = scratch / "run", scratch / "daemon.log"
    arguments = [
        *("start", *more, "--lifeline", str(os.getpid())),
        *("--runtime-dir", str(runtime_dir), "--cache-dir", str(scratch / "index")),
    ]
    began_s = time.monotonic()
    process = _start("prepserver.cli", arguments, log_path, stdin=subprocess.DEVNULL, env=env)
    try:
        while not _listens(runtime_dir / ATTACH_SOCKET):
            if process.poll() is not None or time.monotonic() > began_s + _START_S:
                raise DemoFailure(f"the daemon did not start: {_tail(log_path)}")
            time.sleep(0.02)
        yield DemoServer(process.pid, runtime_dir / ATTACH_SOCKET, time.monotonic() - began_s)
    finally:
        process.terminate()
        _wait(process)


def tree_cpu_s(roots: Iterable[int]) -> float:
    """User and system seconds of the processes `roots` and their living descendants, to about 10 ms each."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue  # it has just ended
        fields = text[text.rindex(")") + 2 :].split()  # the name in brackets may hold anything
        children[int(fields[1])].append(int(entry.name))
        ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    total, todo = 0, list(roots)
    while todo:
        pid = todo.pop()
        total += ticks.get(pid, 0)
        todo += children[pid]
    return total * _TICK_S


def _start(module: str, arguments: list[str], log_path: Path, **pipes: Any) -> subprocess.Popen[bytes]:
    with log_path.open("wb") as log:
        # In another session, so that Ctrl-C reaches only the demo, which then ends its children.
        pipes = {"stdout": log, "stderr": log, **pipes}
        return subprocess.Popen([sys.executable, "-m", module, *arguments], start_new_session=True, **pipes)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        return sock.connect_ex(os.fspath(path)) == 0


def _tail(path: Path) -> str:
    return path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() or "its log is empty"
