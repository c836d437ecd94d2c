"""Processes forked from one that has imported everything: most of what a fresh interpreter computes is importing."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, NoReturn
from unittest.mock import patch

from tests.support import client_process
from tests.support.server import environment
from tests.support.waiting import PATIENCE_S

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [client_process.__name__, *(f"prepserver.cli.{name}" for name in ("audit", "replay", "report"))]
)


def _start(process: BaseProcess) -> None:
    with patch.dict(os.environ, environment(), clear=True):  # the first one starts the process that is forked
        process.start()


def cli(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs ``prepserver`` with `arguments` to its end, as `tests.support.server.cli` does in a new interpreter."""
    return cli_of(None, *arguments, **more)


def cli_of(user: tuple[int, int] | None, /, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As `cli`, by another user: this uid, which has only this group beside its own, when all is imported."""
    return _to_its_end(environment(**more), _run_cli, user, arguments)


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ``python -c program`` with `arguments` to its end."""
    return _to_its_end(environment(), _run_program, program, arguments)


def _to_its_end(environment: dict[str, str], run: Callable[..., int], *what: Any) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("out", "err")]
        process = _CONTEXT.Process(target=_become, args=(environment, os.getcwd(), said, run, *what))
        _start(process)
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(str(what), PATIENCE_S)
        return subprocess.CompletedProcess(what, process.exitcode, *(path.read_text() for path in said))


def _become(
    environment: dict[str, str], folder: str, said: Sequence[Path], run: Callable[..., int], *what: Any
) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    os.chdir(folder)
    for number, path in enumerate((Path(os.devnull), *said)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.exit(run(*what))


def _run_cli(user: tuple[int, int] | None, arguments: Sequence[str]) -> int:
    from prepserver.cli import main

    if user is not None:
        uid, group = user
        os.setgroups([group])
        os.setgid(uid)
        os.setuid(uid)
    return main(arguments)


def _run_program(program: str, arguments: Sequence[str]) -> int:
    sys.argv = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})
    return 0


class Forked:
    """A process forked from one that has imported everything, because a new interpreter spends most of its time
    importing.

    Attributes:
        stdin: Of the process, as all that follow: what `subprocess.Popen` has, as far as tests use it.
    """

    def __init__(self, env: dict[str, str]) -> None:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(3)]
        theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
        ours = (pipes[0][1], pipes[1][0], pipes[2][0])
        self._process = _CONTEXT.Process(target=client_process.main_with, args=(environment(**env), *theirs))
        _start(self._process)
        for end in theirs:
            end.close()
        files: list[IO[str]] = [
            open(os.dup(end.fileno()), mode, encoding="utf-8")  # noqa: SIM115
            for end, mode in zip(ours, "wrr", strict=True)
        ]
        for mine in ours:
            mine.close()
        self.stdin, self.stdout, self.stderr = files

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float | None = None) -> int:
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a client", timeout_s or 0.0)
        return self._process.exitcode
