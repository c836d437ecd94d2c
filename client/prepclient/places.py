"""Finds the daemon: its runtime directory, and whether it listens there."""

from __future__ import annotations

import os
from pathlib import Path

from prepclient.errors import NoServer
from prepclient.transport import connect
from prepserver.protocol.messages import ATTACH_SOCKET
from prepserver.protocol.places import runtime_dirs


def candidates(given: str | None) -> list[Path]:
    """The directories in which to look for a daemon: the one given by the caller, or the usual places."""
    return [Path(given).absolute()] if given is not None else [Path(p) for p in runtime_dirs(os.environ, os.getuid())]


def find_runtime_dir(given: str | None) -> Path:
    """The given directory; else the first of the usual places with a socket, or the first of all."""
    found = candidates(given)
    sockets = (path for path in found if _trusted(path) and os.path.lexists(path / ATTACH_SOCKET))
    return found[0] if given is not None else next(sockets, found[0])


def listens(runtime_dir: Path) -> bool:
    """Whether a daemon listens in `runtime_dir`.

    Raises:
        NoPermission: One listens, but this user may not use it.
    """
    try:
        connect(runtime_dir).close()
    except NoServer:
        return False
    return True


def _trusted(path: Path) -> bool:
    """Whether `path` is a real directory of this user or the system: anyone may put one under /tmp."""
    try:
        info = path.lstat()
    except OSError:
        return False
    return path.is_dir() and not path.is_symlink() and (path.parent != Path("/tmp") or info.st_uid == os.getuid())
