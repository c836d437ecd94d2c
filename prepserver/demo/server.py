"""The demo's own daemon: in a directory of its own, ended with the demo however that ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prepserver
from prepserver import __version__
from prepserver.demo.failure import DemoFailure
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.messages import ATTACH_SOCKET, FROM_ATTACH, AskStatus

_START_S = 60.0
_STOP_S = 10.0
_ANSWER_S = 5.0
_LOG_TAIL_BYTES = 2000


class DemoServer:
    """A running daemon.

    Attributes:
        pid: Of the daemon, the root of its workers' tree.
        runtime_dir: Where it listens.
        start_s: Time from its start until it listened.
    """

    def __init__(self, pid: int, runtime_dir: Path, start_s: float) -> None:
        self.pid = pid
        self.runtime_dir = runtime_dir
        self.start_s = start_s

    def rows(self) -> tuple[int, int]:
        """Rows (made, delivered) of the streams that run now; (0, 0) if it does not answer."""
        try:
            status = self._status()
        except (OSError, ValueError):
            return 0, 0
        streams = status["streams"]
        return sum(s["rows_filled"] for s in streams), sum(s["rows_delivered"] for s in streams)

    def _status(self) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(_ANSWER_S)
            sock.connect(os.fspath(self.runtime_dir / ATTACH_SOCKET))
            sock.send(encode(AskStatus(__version__)))
            data, fds, _, _ = socket.recv_fds(sock, MAX_MESSAGE_BYTES + 1, 1)
            decode(data, FROM_ATTACH)
        with open(fds[0], "rb") as file:
            found: dict[str, Any] = json.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
        return found


@contextlib.contextmanager
def running_server(scratch: Path, workers: int) -> Iterator[DemoServer]:
    """A daemon with `workers` workers and its files in `scratch`.

    Raises:
        DemoFailure: It does not come up; the text has the end of its log.
    """
    runtime_dir, log_path = scratch / "run", scratch / "daemon.log"
    command = [
        *(sys.executable, "-m", "prepserver.cli", "start", "--workers", str(workers)),
        *("--runtime-dir", str(runtime_dir), "--cache-dir", str(scratch / "index"), "--lifeline", str(os.getpid())),
    ]
    began_s = time.monotonic()
    with log_path.open("wb") as log:
        # A session of its own: Ctrl-C is for the demo, which then ends its daemon.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True
        )
        try:
            _wait_up(process, runtime_dir / ATTACH_SOCKET, log_path)
            yield DemoServer(process.pid, runtime_dir, time.monotonic() - began_s)
        finally:
            end_process(process)


def environment() -> dict[str, str]:
    """For the demo's children: a checkout's own packages before any installed ones."""
    root = Path(prepserver.__file__).resolve().parents[1]
    paths = [str(root)] + ([str(root / "client")] if (root / "client" / "prepclient").is_dir() else [])
    if root.name in ("site-packages", "dist-packages"):
        paths = []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}


def end_process(process: subprocess.Popen[Any]) -> None:
    """SIGTERM, twice (there is nothing to drain for), then SIGKILL."""
    for _ in range(2):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(path: Path) -> str:
    """The end of a log."""
    return path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() or "it said nothing"


def _wait_up(process: subprocess.Popen[bytes], path: Path, log_path: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock, contextlib.suppress(OSError):
            sock.connect(os.fspath(path))
            return
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise DemoFailure(f"the daemon did not come up: {tail(log_path)}")
        time.sleep(0.02)
