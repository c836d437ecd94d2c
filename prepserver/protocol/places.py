"""The default runtime directories, by the same rule for a daemon and its clients.

In order: ``$PREPSERVER_RUNTIME_DIR``; ``$XDG_RUNTIME_DIR/prepserver`` (a login session's daemon); ``/run/prepserver``
(the system's); ``/tmp/prepserver-UID`` (without either). A daemon takes the first directory that it can make; clients
and commands take the first in which a daemon listens.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Callable, Mapping
from typing import Any

RUNTIME_DIR_VARIABLE = "PREPSERVER_RUNTIME_DIR"
SYSTEM_RUNTIME_DIR = "/run/prepserver"
MAX_SOCKET_PATH_BYTES = 107
"""Room for the path of a socket in ``sun_path``, less its NUL."""
PRIVATE_LOG = "log"
"""Log file in the directory of a private daemon. The daemon's owner writes it, and either process removes it."""


def runtime_dirs(environ: Mapping[str, str], uid: int) -> list[str]:
    """Candidate runtime directories, best first; only one if the environment names it."""
    named = environ.get(RUNTIME_DIR_VARIABLE)
    if named:
        return [named]
    session = environ.get("XDG_RUNTIME_DIR")
    found = [f"{session}/prepserver"] if session else []
    return [*found, SYSTEM_RUNTIME_DIR, f"/tmp/prepserver-{uid}"]  # the daemon checks owner and mode


def trusted_dirs(environ: Mapping[str, str], uid: int, status: Callable[..., Any]) -> list[str]:
    """Those of `runtime_dirs` that only this user or the system can have made; `status` is `os.stat`.

    A directory where anyone may make one, as in /tmp, must exist and belong to this user.
    """
    found = runtime_dirs(environ, uid)
    if len(found) == 1:
        return found  # the environment names it
    return [place for place in found if _is_trusted(place, uid, status)] or [SYSTEM_RUNTIME_DIR]


def _is_trusted(place: str, uid: int, status: Callable[..., Any]) -> bool:
    try:
        if not status(posixpath.dirname(place)).st_mode & stat.S_IWOTH:
            return True
        info = status(place, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and bool(info.st_uid == uid)
