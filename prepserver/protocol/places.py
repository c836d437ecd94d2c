"""The default runtime directories, by the same rule for a daemon and its clients.

In order: ``$PREPSERVER_RUNTIME_DIR``; ``$XDG_RUNTIME_DIR/prepserver`` (a login session's daemon); ``/run/prepserver``
(the system's); ``/tmp/prepserver-UID`` (without either). A daemon takes the first directory that it can make; clients
and commands take the first in which a daemon listens.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import posixpath
import pwd
import shlex
import stat
from collections.abc import Callable, Mapping
from typing import Any

RUNTIME_DIR_VARIABLE = "PREPSERVER_RUNTIME_DIR"
ONLY_ROWS_VARIABLE = "PREPSERVER_ONLY_ROWS"
"""Set in processes that make rows for a daemon, and import plug-ins for that: no client attaches there."""
NEEDS_GUARD = (
    'in a training script that `plugins` names, the loop must stand under `if __name__ == "__main__":`, because the '
    "script is imported"
)
SYSTEM_RUNTIME_DIR = "/run/prepserver"
MAX_SOCKET_PATH_BYTES = 107  # room for the path of a socket in ``sun_path``, less its NUL
PRIVATE_LOG = "log"
"""Log file in the directory of a private daemon. The daemon's owner writes it, and either process removes it."""


def is_named(given: str | None, environ: Mapping[str, str]) -> bool:
    """Whether the user has named the runtime directory: as an argument, `given`, or in the environment."""
    return given is not None or bool(environ.get(RUNTIME_DIR_VARIABLE))


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


def dir_to_ask(given: str | None, environ: Mapping[str, str], uid: int, socket: str, status: Callable[..., Any]) -> str:
    """Where to look for a daemon: `given`, or the first of `trusted_dirs` with its `socket`, or else the first one."""
    if given is not None:
        return given
    found = trusted_dirs(environ, uid, status)
    for place in found:
        with contextlib.suppress(OSError):
            status(f"{place}/{socket}", follow_symlinks=False)
            return place
    return found[0]


def _is_trusted(place: str, uid: int, status: Callable[..., Any]) -> bool:
    try:
        if not status(posixpath.dirname(place)).st_mode & stat.S_IWOTH:
            return True
        info = status(place, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and bool(info.st_uid == uid)


def why_refused(place: str, socket: str, status: Callable[..., Any]) -> str:
    """Whose the `socket` in a runtime directory is, and what a user who may not open it can do; `status` is `os.stat`.

    Where the user may not enter the directory, the text is about the directory.
    """
    found = f"nobody but its owner can look into {place}"
    for what, path, for_group in (("socket", f"{place}/{socket}", 0o020), ("directory", place, 0o010)):
        try:
            info = status(path)
        except OSError:
            continue
        owner, group = user_name(info.st_uid), group_name(info.st_gid)
        whose = f"user {owner}" if owner else f"uid {info.st_uid}"
        of_group = f"group {group}" if group else f"gid {info.st_gid}"
        found = f"the {what} belongs to {whose}, {of_group}, mode {stat.S_IMODE(info.st_mode):o}"
        if info.st_mode & for_group and info.st_gid != 0:  # nobody should join root's group for this
            command = f" (`usermod -aG {shlex.quote(group)} NAME`)" if group else ""
            found += f". Ask its operator to add you to that group{command}, and log in again"
        break
    return found


@functools.cache  # it may ask a server of the network
def user_name(uid: int) -> str:
    """The name of a user; empty if this machine has none for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def group_name(gid: int) -> str:
    """The name of a group; empty if this machine has none for it."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""
