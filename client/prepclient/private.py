"""A private daemon: it starts for this process, ends with it, and has a directory of its own."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Any

import prepserver
from prepclient.errors import InvalidSpec, NoServer
from prepclient.places import listens
from prepserver.protocol.messages import ATTACH_SOCKET
from prepserver.protocol.places import MAX_SOCKET_PATH_BYTES, PRIVATE_LOG

log = logging.getLogger("prepclient")

_PREFIX = "prepserver-private-"
_MAX_BASE_BYTES = MAX_SOCKET_PATH_BYTES - len(f"/{_PREFIX}xxxxxxxx/{ATTACH_SOCKET}")
_LAST_BASE = "/tmp"
_START_TIMEOUT_S = 90.0
_SAID_AFTER_S = 5.0  # on a machine that is not busy it listens before that
_STOP_TIMEOUT_S = 10.0
_SWEPT_AFTER_S = 600.0  # by then, every daemon that runs has taken its lock

_running: weakref.WeakValueDictionary[int, PrivateDaemon] = weakref.WeakValueDictionary()
"""By pid: a forked child ignores its parent's entry and starts its own."""

_starting: dict[int, Any] = {}
"""Locks by pid, because a thread of the parent may hold the one that a forked child inherits. They are reentrant for
signal handlers."""


def private_daemon(workers: int | str, plugins: Sequence[str], roots: Sequence[str]) -> PrivateDaemon:
    """The private daemon of this process, which is started if none runs. It ends with the last client that holds it.

    `workers` may be "auto", for as many as the jobs need. The daemon reads remote data only below the URLs `roots`.

    Raises:
        NoServer: It did not start; the text has the end of its log.
        InvalidSpec: One runs already, without one of the plug-ins or roots.
    """
    with _starting.setdefault(os.getpid(), threading.RLock()):  # threads that ask at the same time share the daemon
        running = _running.get(os.getpid())
        if running is None or not running.is_alive:
            _running[os.getpid()] = running = PrivateDaemon(workers, plugins, roots)
            return running
    if missing := [name for name in plugins if name not in running.plugins]:
        raise InvalidSpec(
            f"plugins = {missing}: the private daemon of this process runs already, with plugins = "
            f"{list(running.plugins)}. Name all of them for the first client, or close that client first",
            "plugins",
        )
    if missing := [root for root in roots if root not in running.roots]:
        raise InvalidSpec(
            f"the private daemon of this process runs already, and does not read {', '.join(missing)}: close its "
            "clients first, or begin with a client that reads from there",
            "source",
        )
    if (versions := _versions(running.plugins)) != running.versions:
        changed = ", ".join(name for name, version in versions.items() if version != running.versions[name])
        log.warning(
            "the code of plug-in %s has changed since the private daemon of this process started, and it runs the old "
            "code: close all clients of this process, and make them again", changed,
        )  # fmt: skip
    if running.workers != workers:
        log.warning(
            "workers = %s: the private daemon of this process runs already, with workers = %s", workers, running.workers
        )
    return running


def running_daemon(workers: int | str | None, plugins: Sequence[str], roots: Sequence[str]) -> PrivateDaemon | None:
    """The private daemon of this process, if it runs with exactly these arguments and without plug-ins; else None.

    A new client holds it at once: a notebook's cell that is run again drops the old client before it uses the new one.
    With plug-ins another daemon must start, because their code may have changed.
    """
    running = _running.get(os.getpid())
    if running is None or plugins or running.plugins or (running.workers, running.roots) != (workers, tuple(roots)):
        return None
    return running


def _versions(plugins: Sequence[str]) -> dict[str, bytes]:
    """Digests of the files of the plug-ins' modules, by plug-in; empty where there is none. Nothing is imported."""
    found: dict[str, bytes] = dict.fromkeys(plugins, b"")
    for plugin in plugins:
        name, places, file = "", None, ""
        for part in plugin.partition(":")[0].split("."):
            name = f"{name}.{part}" if name else part
            spec = PathFinder.find_spec(name, places)
            places, file = (spec.submodule_search_locations, spec.origin or "") if spec is not None else ([], "")
        with contextlib.suppress(OSError):
            found[plugin] = hashlib.sha256(Path(file).read_bytes()).digest()
    return found


class PrivateDaemon:
    """A daemon in its own directory `runtime_dir`, which ends with this object or with this process.

    With plug-ins it can import and read all that this process can.

    Raises:
        NoServer: It did not start, and the text has the end of its log; or no directory can hold its sockets.
    """

    def __init__(self, workers: int | str, plugins: Sequence[str], roots: Sequence[str]) -> None:
        self.workers = workers
        self.plugins = tuple(plugins)
        self.roots = tuple(roots)
        self.versions = _versions(plugins)
        self.runtime_dir = _make_place()
        _sweep_beside(self.runtime_dir)
        said = (self.runtime_dir / PRIVATE_LOG).open("w+")
        command = [
            *(sys.executable, "-m", "prepserver.cli", "start", "--workers", str(workers)),
            *("--runtime-dir", str(self.runtime_dir), "--lifeline", str(os.getpid())),
            *("--cache-folder", "/"),  # its owner, who is its only user, may cache in any folder
            *(part for name in plugins for part in ("--plugin", name)),
            *(("--plugin-read", "/") if plugins else ()),
            *(part for root in roots for part in ("--root", root)),
        ]
        root = Path(prepserver.__file__).resolve().parents[1]
        mine = [os.path.abspath(path) for path in sys.path] if plugins else []
        paths = (str(root), os.environ.get("PYTHONPATH", ""), *mine)
        # Following redirects is safe here: its owner is its only user, and could follow them without it.
        env = {"PREPSERVER_REDIRECTS": "any", **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        # A new session, so that Ctrl-C in the terminal reaches only the training script, which then ends its daemon.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env, start_new_session=True
        )
        self._end = weakref.finalize(self, _end, os.getpid(), self._process, said, self.runtime_dir)
        try:
            self._wait_up(said)
        except BaseException:
            self._end()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether its process still runs."""
        return self._process.poll() is None

    def _wait_up(self, said: IO[str]) -> None:
        began_s, has_said = time.monotonic(), False
        while not listens(self.runtime_dir):
            spent_s = time.monotonic() - began_s
            if spent_s > _SAID_AFTER_S and not has_said:
                has_said = True
                log.warning(
                    "waiting up to %g s for the private daemon (workers=%s) to start in %s",
                    _START_TIMEOUT_S, self.workers, self.runtime_dir,
                )  # fmt: skip
            if not self.is_alive or spent_s > _START_TIMEOUT_S:
                said.seek(0)
                *before, last = said.read()[-2000:].strip().splitlines() or ["its log is empty"]
                reason = "\n".join([last, *(["Its log before that:"] if before else []), *before])
                raise NoServer(f"the private daemon (workers={self.workers}) did not start: {reason}")
            time.sleep(0.01)


def _make_place() -> Path:
    """Makes a directory: in ``$XDG_RUNTIME_DIR``, in the temporary directory, or in ``/tmp``.

    Raises:
        NoServer: None of them can be used; the text says why.
    """
    bases = [os.environ.get("XDG_RUNTIME_DIR")]
    with contextlib.suppress(FileNotFoundError):  # no temporary directory is writable
        bases.append(tempfile.gettempdir())
    refused = []
    for base in dict.fromkeys(filter(None, [*bases, _LAST_BASE])):
        length = len(os.fsencode(base))
        try:
            if length <= _MAX_BASE_BYTES:
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            refused.append(f"{base} is {length} bytes long, and {_MAX_BASE_BYTES} leave room for the path of a socket")
        except OSError as e:
            refused.append(f"{base}: {e.strerror}")
    raise NoServer(
        f"no directory for the private daemon (workers=N): {'; '.join(refused)}. Set $TMPDIR to a short writable "
        "one, start a daemon with `prepserver start --runtime-dir DIR`, or use inline=True"
    )


def _end(owner: int, process: subprocess.Popen[bytes], said: IO[str], runtime_dir: Path) -> None:
    if os.getpid() != owner:
        return  # in a forked child, the daemon is the parent's
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_TIMEOUT_S)
    said.close()
    shutil.rmtree(runtime_dir, ignore_errors=True)


def _sweep_beside(new: Path) -> None:
    """Removes what this user's private daemons left behind when they were killed."""
    now_s = new.stat().st_mtime
    for path in new.parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            info = path.lstat()
            if info.st_uid == os.getuid() and now_s - info.st_mtime > _SWEPT_AFTER_S and not _is_locked(path):
                shutil.rmtree(path)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
