"""Finds the daemon: its runtime directory, and whether it listens there."""

from __future__ import annotations

import os
from pathlib import Path

from prepclient.errors import NoServer
from prepclient.transport import connect
from prepserver.protocol.messages import ATTACH_SOCKET
from prepserver.protocol.places import runtime_dirs, trusted_dirs


def places(given: str | None) -> list[Path]:
    """The directories in which a daemon may start, including those that do not exist yet."""
    return [
        Path(place).absolute() for place in ([given] if given is not None else runtime_dirs(os.environ, os.getuid()))
    ]


def candidates(given: str | None) -> list[Path]:
    """The directories to search for a daemon: the given one, or those of the usual places that can be trusted."""
    if given is not None:
        return [Path(given).absolute()]
    return [Path(place) for place in trusted_dirs(os.environ, os.getuid(), os.stat)]


def find_runtime_dir(given: str | None) -> Path:
    """The first of the `candidates` that has a socket, or else the first one."""
    found = candidates(given)
    return next((place for place in found if os.path.lexists(place / ATTACH_SOCKET)), found[0])


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
