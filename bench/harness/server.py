"""A daemon of the benchmark's own, in a directory of its own, that is always ended."""

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
from typing import TYPE_CHECKING, Any

from bench.harness.fingerprint import ROOT
from bench.harness.proc import children

if TYPE_CHECKING:
    from prepclient import PrepClient

TREE = "PREPSERVER_BENCH_TREE"
"""Names the checkout whose prepserver child processes import, if it is not this one; see the case `versus`."""

_START_S, _STOP_S, _CLI_S = 90.0, 15.0, 600.0
_CLI = "prepserver.cli"


@dataclass(frozen=True, slots=True)
class Server:
    """A running daemon.

    Attributes:
        runtime_dir: The directory of its sockets.
        pid: The daemon's process.
        ready_ns: When it was first seen to listen, by the monotonic clock.
    """

    runtime_dir: Path
    pid: int
    ready_ns: int

    def status(self) -> dict[str, Any]:
        """What ``prepserver status --json`` says."""
        found: dict[str, Any] = json.loads(run_cli("status", "--json", "--runtime-dir", str(self.runtime_dir)))
        return found

    def workers_now(self) -> list[int]:
        """The workers' processes, read in /proc: so cheap that it may be asked in a measured window."""
        return [pid for zygote in children(self.pid) for pid in children(zygote)]

    def worker_pids(self) -> list[int]:
        """The workers' processes, once they are up."""
        return [w["pid"] for w in self.status()["workers"] if w["pid"]]

    def client(self, source: Any, ops: list[Any] | None = None, **options: Any) -> PrepClient:
        """A client in this process. By default it crops to 224 pixels, flips, shuffles, and takes batches of 64.

        Args:
            source: The path of a list file, or a source.
            ops: The pipeline.
            options: More arguments of `PrepClient`.
        """
        from prepclient import FileList, PrepClient, RandomHorizontalFlip, RandomResizedCrop

        return PrepClient(
            FileList(source) if isinstance(source, Path) else source,
            ops or [RandomResizedCrop(224), RandomHorizontalFlip()],
            **{"batch_size": 64, "shuffle": True, "runtime_dir": self.runtime_dir, **options},
        )


@contextlib.contextmanager
def running_server(
    scratch: Path,
    workers: int,
    *,
    fill: str | None = None,
    sample_s: float = 0.0,
    wait_workers: bool = True,
    roots: Sequence[str] = (),
    more: Sequence[str] = (),
) -> Iterator[Server]:
    """A daemon that listens.

    Args:
        scratch: Holds its sockets, log and listings.
        workers: The number of workers.
        fill: What workers do in place of decoding; see `bench.harness.stand_in`.
        sample_s: How long they then take for a sample.
        wait_workers: Whether to wait until all workers are up.
        roots: Its source roots.
        more: More for its command line.
    """
    runtime_dir, log_path = scratch / "run", scratch / "daemon.log"
    arguments = [
        *(sys.executable, "-m", "bench.harness.stand_in" if fill else _CLI, "start", "--workers", str(workers)),
        *("--runtime-dir", str(runtime_dir), "--cache-dir", str(scratch / "index")),
        *(part for root in roots for part in ("--root", root)), *more,
    ]  # fmt: skip
    env = {**environment(), "BENCH_FILL": fill or "", "BENCH_SAMPLE_S": str(sample_s)}
    with log_path.open("w") as log:
        process = subprocess.Popen(arguments, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_up(process, runtime_dir, log_path)
            server = Server(runtime_dir, process.pid, time.monotonic_ns())
            while wait_workers and len(server.worker_pids()) < workers:
                time.sleep(0.1)
            yield server
        finally:
            for _ in range(2):  # the second signal ends it without draining
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_S)


def run_cli(*arguments: str) -> str:
    """Runs ``prepserver`` with these arguments and returns what it prints.

    Raises:
        SystemExit: It failed; the message says why.
    """
    command = [sys.executable, "-m", _CLI, *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=_CLI_S)
    if done.returncode:
        raise SystemExit(f"prepserver {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def environment() -> dict[str, str]:
    """The environment of child processes: they find the measured checkout's product first, then this one's bench.

    The working directory is kept out of their path: it may be this checkout while another one is measured.
    """
    tree = Path(os.environ.get(TREE, ROOT))
    paths = dict.fromkeys([str(tree), str(tree / "client"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONSAFEPATH": "1"}


def _wait_up(process: subprocess.Popen[bytes], runtime_dir: Path, log_path: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock, contextlib.suppress(OSError):
            sock.connect(str(runtime_dir / "attach.sock"))
            return
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit(f"the daemon did not come up:\n{log_path.read_text()[-2000:]}")
        time.sleep(0.005)
