"""Finds the daemon: its runtime directory, and whether it listens there."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

from prepclient.errors import NoPermission, NoServer
from prepclient.transport import connect
from prepserver.protocol.messages import ATTACH_SOCKET
from prepserver.protocol.places import dir_to_ask, is_named, runtime_dirs

log = logging.getLogger("prepclient")


def places(given: str | None) -> list[Path]:
    """The directories in which a daemon may start, including those that do not exist yet."""
    return [
        Path(place).absolute() for place in ([given] if given is not None else runtime_dirs(os.environ, os.getuid()))
    ]


def find_runtime_dir(given: str | None) -> Path:
    """The directory in which to look for a daemon: the given one, or one of the usual places that can be trusted."""
    return Path(dir_to_ask(given, os.environ, os.getuid(), ATTACH_SOCKET, os.stat)).absolute()


def listens(runtime_dir: Path) -> bool:
    """Whether a daemon listens in `runtime_dir`; raises `NoPermission` if one does, but this user may not use it."""
    try:
        connect(runtime_dir).close()
    except NoServer:
        return False
    return True


def is_served(given: str | None) -> bool:
    """Whether a daemon runs for this user, so that no private one is needed.

    None does in a usual place that this user may not enter: nobody knows whether one runs there.

    Raises:
        NoPermission: As `listens`, in any other place.
    """
    place = find_runtime_dir(given)
    try:
        return listens(place)
    except NoPermission as e:
        if is_named(given, os.environ) or os.access(place, os.X_OK):
            raise
        _say_shut(str(e))
        return False


@functools.cache  # once per process
def _say_shut(why: str) -> None:
    log.warning("workers=N starts a private daemon, because this user cannot see whether another one runs: %s", why)
