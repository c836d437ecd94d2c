"""A daemon of the benchmark's own, in a directory of its own, always ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fingerprint import ROOT
from proc import children

TREE = "PREPSERVER_BENCH_TREE"
"""Names the checkout whose prepserver is measured, where it is not this one; see `versus.py`."""

_START_S, _STOP_S = 90.0, 15.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running daemon.

    Attributes:
        runtime_dir: Its place.
        pid: Of the daemon.
        ready_ns: When it was first seen to listen, monotonic.
    """

    runtime_dir: Path
    pid: int
    ready_ns: int

    def status(self) -> dict[str, Any]:
        """What ``prepserver status --json`` says."""
        command = [sys.executable, "-m", "prepserver.cli", "status", "--json", "--runtime-dir", str(self.runtime_dir)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=30)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def workers_now(self) -> list[int]:
        """The children of its zygote, read in /proc: next to no work, so it may be asked in a measured window."""
        return [pid for zygote in children(self.pid) for pid in children(zygote)]

    def worker_pids(self) -> list[int]:
        return [w["pid"] for w in self.status()["workers"] if w["pid"]]


@contextlib.contextmanager
def running_server(
    scratch: Path, workers: int, command: Sequence[str] = ("-m", "prepserver.cli"), *, wait_workers: bool = True
) -> Iterator[Server]:
    """A daemon that listens, with all its workers up.

    Args:
        scratch: Holds its sockets, log and listings.
        workers: How many.
        command: What to run in place of the CLI.
        wait_workers: Whether to wait for the workers.
    """
    runtime_dir = scratch / "run"
    log_path = scratch / "daemon.log"
    arguments = [
        *(sys.executable, *command, "start", "--workers", str(workers)),
        *("--runtime-dir", str(runtime_dir), "--cache-dir", str(scratch / "index")),
    ]
    with log_path.open("w") as log:
        process = subprocess.Popen(arguments, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_up(process, runtime_dir, log_path)
            server = Server(runtime_dir, process.pid, time.monotonic_ns())
            while wait_workers and len(server.worker_pids()) < workers:
                time.sleep(0.1)
            yield server
        finally:
            for _ in range(2):  # nobody is left to drain for
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_S)


def run_cli(*arguments: str) -> None:
    """Runs ``prepserver`` with these arguments; its output is shown where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "prepserver.cli", *arguments], env=environment(), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"prepserver {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def environment() -> dict[str, str]:
    """Of child processes: the measured checkout first, installed or not."""
    tree = Path(os.environ.get(TREE, ROOT))
    paths = (str(tree), str(tree / "client"), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _wait_up(process: subprocess.Popen[bytes], runtime_dir: Path, log_path: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock, contextlib.suppress(OSError):
            sock.connect(str(runtime_dir / "attach.sock"))
            return
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit(f"the daemon did not come up:\n{log_path.read_text()[-2000:]}")
        time.sleep(0.005)
