"""A real daemon for tests: started by the command line, stopped, searched for leftovers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import prepclient
import prepserver
from prepserver.cli.ask import AskError, ask_status
from tests.support import leaks
from tests.support.waiting import PATIENCE_S, wait_until

ALIVE: list[Server] = []
"""Those whose log is shown when a test fails."""


def environment(**more: str) -> dict[str, str]:
    """For child processes: they import the packages that this process has imported, and know of no daemon."""
    roots = [str(Path(str(package.__file__)).resolve().parents[1]) for package in (prepserver, prepclient)]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PREPSERVER_")}
    paths = [*roots, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), **more}


def cli(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs ``prepserver`` with `arguments` to its end."""
    command = [sys.executable, "-m", "prepserver.cli", *arguments]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


class Server:
    """One daemon in a short runtime directory of its own (a socket's path has at most 107 bytes).

    Args:
        workers: Worker processes.
        memory: ``--memory``.
        settings: For ``--config``, such as ``{"drain_s": 0.5}``.
        arguments: More for the command line.
        env: More for its environment.
        program: What Python runs.
        remote: Remote workers, beside the others.
        within: A command that runs it, such as as another user.

    Attributes:
        home: Holds everything of this daemon.
        runtime_dir: Where its sockets are.
        mark: In the environment of the daemon and of all that it starts; see `leaks`.
        baseline: What it held before its first client, where the fixture took that.
        seen_rings: Inodes of all ring segments that `look` has ever found.
    """

    def __init__(
        self,
        workers: int = 2,
        memory: str | None = None,
        settings: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "prepserver.cli"),
        remote: int = 0,
        within: Sequence[str] = (),
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="pst-", dir="/tmp"))
        self.runtime_dir = self.home / "run"
        self.log_path = self.home / "log"
        self.mark = uuid.uuid4().hex
        self.seen_rings: set[int] = set()
        self.baseline: leaks.Holdings | None = None
        self.said = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments = ["--workers", str(workers), "--cache-dir", str(self.home / "cache"), *arguments]
        if remote:
            self._arguments += ["--engine", "ray", "--remote-workers", str(remote)]
        self._workers = workers + remote
        self._program = program
        self._within = within
        self._pass_fds: Sequence[int] = ()
        self._env = {leaks.MARK: self.mark, **(env or {})}
        if memory is not None:
            self._arguments += ["--memory", memory]
        if settings:
            config = self.home / "config.toml"
            config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
            self._arguments += ["--config", str(config)]
        ALIVE.append(self)

    def start(self) -> Self:
        """Returns when clients may attach and every worker is up."""
        self.launch()
        self.wait_up()
        return self

    def wait_up(self) -> None:
        """Returns when clients may attach and every worker is up."""
        wait_until(self._is_up, why=self.log)

    def launch(self) -> None:
        """Starts the process and does not wait."""
        self._process = self.another()

    def another(
        self, *arguments: str, program: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a daemon in this one's directory and does not wait; `adopt` makes it this one."""
        command = [
            *(*self._within, sys.executable, *(program or self._program), "start"),
            *("--runtime-dir", str(self.runtime_dir), *self._arguments, *arguments),
        ]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=self._pass_fds,
                env=environment(**self._env | dict(env or {})),
            )  # fmt: skip

    def kill(self) -> None:
        """Kills the daemon with SIGKILL, when what it holds has been looked at; its children end by themselves."""
        self.look()
        self.process.kill()
        self.process.wait()

    def adopt(self, process: subprocess.Popen[bytes]) -> None:
        """The daemon is `process` from now on; the one before has ended."""
        assert self.process.poll() is not None
        self._process = process

    def _is_up(self) -> bool:
        assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}:\n{self.log()}"
        with contextlib.suppress(AskError):
            return len(self.workers()) == self._workers
        return False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The daemon, as its parent has it."""
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        """Of the daemon."""
        return self.process.pid

    @property
    def zygote(self) -> int:
        """Pid of the workers' parent."""
        (pid,) = leaks.children(self.pid)
        return pid

    def workers(self) -> list[int]:
        """Pids of the workers that are up."""
        return [w["pid"] for w in self.status()["workers"] if w["state"] != "starting" and w["pid"] is not None]

    def status(self) -> dict[str, Any]:
        """What ``prepserver status --json`` prints."""
        return ask_status(str(self.runtime_dir))

    def stream(self) -> dict[str, Any]:
        """The only stream."""
        (found,) = self.status()["streams"]
        return dict(found)

    def log(self) -> str:
        """All that the daemon and its children have said."""
        try:
            return self.log_path.read_text(errors="replace")
        except OSError:
            return ""

    def look(self) -> leaks.Holdings:
        """What the daemon and its children hold now."""
        for pid in leaks.marked(self.mark):
            self.seen_rings |= set(leaks.rings(pid))
        return leaks.holdings(self.pid)

    def settled(self) -> leaks.Holdings:
        """What the daemon and its children hold when they have been left alone, so that it does not change."""
        before, equal = self.look(), 0
        while equal < 10:
            time.sleep(0.02)
            now = self.look()
            before, equal = now, equal + 1 if now == before else 0
        return before

    def assert_back_at(self, baseline: leaks.Holdings) -> None:
        """No more descriptors and ring memory than in `baseline`, as many processes; all clients must be gone."""
        now = baseline

        def back() -> bool:
            nonlocal now
            now = self.look()
            if now.leaks(baseline):
                return False
            status = self.status()  # it may hear late of a client that was killed as it came
            return not (status["jobs"] or status["streams"] or status["memory"]["rings_bytes"])

        wait_until(back, why=lambda: f"\nbefore {baseline}\nnow    {now}\n{self.log()[-3000:]}")

    def stop(self) -> None:
        """Ends the daemon if it runs, and asserts that nothing of it is left."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(AskError):
                self.look()
            for pid in leaks.marked(self.mark):  # a test that failed may have left some of them stopped
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            for _ in range(2):
                self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(PATIENCE_S)
            finally:
                self._process.kill()
                self._process.wait()
        self.assert_gone()

    def assert_gone(self) -> None:
        """No process, no socket, no ring memory is left."""
        wait_until(lambda: not leaks.marked(self.mark), why=lambda: f"left: {leaks.marked(self.mark)}\n{self.log()}")
        left = leaks.holders(self.seen_rings)
        assert left == {}, f"ring segments are still held by {left}, this is {os.getpid()}"

    def __enter__(self) -> Self:
        """Starts it."""
        with contextlib.ExitStack() as failed:
            failed.callback(self.__exit__)
            self.start()
            failed.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it, asserts that nothing of it is left, and removes its files."""
        try:
            self.stop()
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes its files."""
        if self in ALIVE:
            ALIVE.remove(self)
        shutil.rmtree(self.home, ignore_errors=True)
