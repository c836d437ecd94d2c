"""``prepserver start``: from settings to a running daemon, in the foreground or detached."""

from __future__ import annotations

import argparse
import contextlib
import functools
import grp
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from prepserver.cli.ask import AskError, ask, ask_status
from prepserver.cli.doubts import doubts
from prepserver.cli.exits import ALREADY_RUNNING, FAILED, NO_DAEMON, NO_PERMISSION, OK, USAGE, CommandError
from prepserver.cli.state import state_dir_of
from prepserver.cli.stop import END_SLACK_S
from prepserver.config import ConfigError, Settings, auto_most_workers, auto_workers, load_settings
from prepserver.daemon.descriptors import DescriptorsShort, clients_allowed, raise_limit
from prepserver.daemon.pool import PluginsChanged
from prepserver.daemon.runtime_dir import AlreadyRunning, Door, RuntimeDir, RuntimeDirError, holder
from prepserver.daemon.server import Daemon, Reread
from prepserver.daemon.systemd import ActivationError, check_place, take_attach_socket
from prepserver.memory.budget import machine_free_bytes
from prepserver.protocol.messages import AskStop
from prepserver.telemetry.logs import log_to_stderr
from prepserver.worker.launch import ZygoteError

log = logging.getLogger("prepserver")

_DETACHED_LOG = "daemon.log"
_NO_GROUP = 2**32 - 1  # chown takes it for "no change"


def start(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    # Slurm's --signal=USR1 reaches all steps of a job. Zygote and workers inherit this.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if arguments.daemon and arguments.foreground:
        raise CommandError("--daemon and --foreground exclude each other", USAGE)
    try:
        if arguments.daemon:
            _need_no_folder(arguments)
        return _start(arguments)
    except tuple(_CODES) as e:
        raise CommandError(e, next(code for kind, code in _CODES.items() if isinstance(e, kind))) from e


def _need_no_folder(arguments: argparse.Namespace) -> None:
    """Makes paths absolute that are relative to the current folder, because a detached daemon leaves it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise CommandError("the current folder has been deleted: change to another one", USAGE) from None
    for name in ("config", "cache_dir", "runtime_dir"):
        if value := getattr(arguments, name):
            setattr(arguments, name, type(value)(os.path.abspath(value)))
    sys.path[:] = map(os.path.abspath, sys.path)
    if places := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, places.split(os.pathsep)))


_CODES: dict[type[Exception], int] = {
    ConfigError: USAGE,
    ActivationError: USAGE,
    DescriptorsShort: USAGE,
    AlreadyRunning: ALREADY_RUNNING,
    RuntimeDirError: NO_PERMISSION,
    ZygoteError: FAILED,
    PluginsChanged: FAILED,
    OSError: FAILED,
}
"""Exit codes by exception; the first that matches counts."""


def _runs(runtime_dir: str) -> bool:
    return bool(runtime_dir) and holder(Path(runtime_dir)) is not None


def _start(arguments: argparse.Namespace) -> int:
    settings, doubtful = _settings(arguments)
    # Of a daemon, the log has them, too. One that runs has taken memory, and says its own when it reads settings again.
    if arguments.daemon or (arguments.check and not _runs(settings.runtime_dir)):
        for doubt in doubtful:
            sys.stderr.write(f"prepserver start: warning: {doubt}\n")
    if settings.cache_dir and not (arguments.check and not os.path.exists(settings.cache_dir)):
        _make_cache_dir(settings.cache_dir)
    group = _group(settings.socket_group)
    most_workers = (settings.workers or auto_most_workers()) + settings.remote_workers
    most_clients = clients_allowed(raise_limit(), most_workers)
    if arguments.check:
        sys.stdout.write("a daemon can start with these settings\n")
        return OK
    passed = take_attach_socket(os.environ)
    place = RuntimeDir(
        Path(settings.runtime_dir) if settings.runtime_dir else None, attach_is_ours=passed is None, group=group,
        is_private=arguments.lifeline is not None, replace=arguments.replace,
    )  # fmt: skip
    if passed is not None:
        check_place(passed, place.attach_socket)
    # With a terminal, SIGHUP means that the terminal is gone; without one, that the daemon reads its settings again.
    reread = None if os.isatty(0) and not arguments.daemon else functools.partial(_reread, arguments)
    door = Door(settings.socket_mode, group)
    serve = functools.partial(_serve, settings, doubtful, most_clients, place, door, passed, reread)
    if arguments.daemon:
        return _detach(lambda ready: serve(None, ready), place)
    return serve(arguments.lifeline, lambda: None)


def _settings(arguments: argparse.Namespace, held_bytes: int = 0) -> tuple[Settings, list[str]]:
    """The settings, and what is doubtful about them; see `doubts`."""
    settings = load_settings(arguments.config, vars(arguments))
    return settings, doubts(settings, held_bytes)


def _reread(arguments: argparse.Namespace, held_bytes: int) -> Settings:
    settings, doubtful = _settings(arguments, held_bytes)
    for doubt in doubtful:
        log.warning("reload: %s", doubt)
    return settings


def _make_cache_dir(cache_dir: str) -> None:
    """Raises `ConfigError` if listings cannot be kept there: every job would be refused."""
    try:
        Path(cache_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.stat(cache_dir)
    except OSError as e:
        raise ConfigError(
            f"cache_dir = {cache_dir} cannot be made: {e.filename}: {e.strerror}. Choose another folder (--cache-dir)"
        ) from e
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"cache_dir = {cache_dir} can be written by others than uid {os.geteuid()}, which runs this daemon: choose "
            "another folder (--cache-dir), or chown it and chmod 700"
        )


def _group(name: str) -> int | None:
    if not name:
        return None
    try:
        number = int(name) if name.isascii() and name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"socket_group = {name!r}: this machine has no such group") from None
    if number >= _NO_GROUP:
        raise ConfigError(f"socket_group = {name}: must be below {_NO_GROUP}, or a name")
    return number


def _serve(
    settings: Settings, doubtful: list[str], most_clients: int, place: RuntimeDir, door: Door,
    passed: socket.socket | None, reread: Reread | None, lifeline: int | None, ready: Callable[[], None],
) -> int:  # fmt: skip
    log_to_stderr(settings.log_level, settings.log_format)
    for doubt in doubtful:
        log.warning("%s", doubt)
    with contextlib.closing(place):
        free_bytes = machine_free_bytes()[0] + (0 if place.is_ours else _held_bytes(place))
        state_dir = state_dir_of(settings.cache_dir, os.environ)
        daemon = Daemon(
            settings, place,
            workers=settings.workers or auto_workers(),
            memory_bytes=settings.memory_bytes or free_bytes // 2,
            cache_memory_bytes=settings.cache_memory_bytes or free_bytes // 4,
            cache_dir=Path(settings.cache_dir) if settings.cache_dir else state_dir / "index",
            state_dir=state_dir, lifeline=lifeline, door=door, attach_socket=passed, reread=reread,
            most_clients=most_clients,
        )  # fmt: skip
        return OK if daemon.run(ready, functools.partial(_succeed, place)) else FAILED


def _held_bytes(place: RuntimeDir) -> int:
    """Memory that the running daemon frees when it is replaced."""
    try:
        memory = ask_status(str(place.path))["memory"]
    except AskError as e:
        if e.code != NO_DAEMON:  # it has just ended
            raise
        return 0
    return int(memory["rings_bytes"] + memory["caches_bytes"])


def _succeed(place: RuntimeDir) -> None:
    """Ends the running daemon, whose jobs then attach to this one, and locks its directory.

    Raises:
        AskError: It refuses, and keeps running.
        AlreadyRunning: It has not ended in time, or a third daemon was faster.
    """
    patience_s = END_SLACK_S
    try:
        patience_s += ask(str(place.path), AskStop(successor=True))[0].within_s
    except AskError as e:
        if e.code != NO_DAEMON:  # it has just ended
            raise
    place.take(patience_s)
    log.info("took the place of the daemon in %s", place.path)


def _detach(serve: Callable[[Callable[[], None]], int], place: RuntimeDir) -> int:
    """Runs `serve` in a daemon process; the calling process returns when that is ready or has failed."""
    log_path = place.path / _DETACHED_LOG
    out = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    before = os.fstat(out).st_size
    ready_read, ready_write = os.pipe()
    if os.fork() > 0:
        os.close(ready_write)
        if not os.read(ready_read, 1):  # end of file: the daemon ended before it was ready
            said = log_path.read_bytes()[before:].decode(errors="replace").rstrip()
            why = said.rpartition("\n")[2].removeprefix("prepserver start: ") or "it ended without a word"
            raise CommandError(f"the daemon did not start: {why} (see {log_path})")
        return OK
    os.setsid()
    if os.fork() > 0:
        os._exit(OK)
    os.close(ready_read)
    place.renew_pid()
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, fd)
    os.close(out)
    os.close(null)
    os.chdir("/")  # the folder of the command may be deleted or unmounted

    def ready() -> None:
        with contextlib.suppress(BrokenPipeError):  # the command was interrupted meanwhile
            os.write(ready_write, b"1")
        os.close(ready_write)

    return serve(ready)
