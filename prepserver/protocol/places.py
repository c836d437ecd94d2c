"""The default runtime directories, by the same rule for a daemon and its clients.

In order: ``$PREPSERVER_RUNTIME_DIR``; ``$XDG_RUNTIME_DIR/prepserver`` (a login session's daemon); ``/run/prepserver``
(the system's); ``/tmp/prepserver-UID`` (without either). A daemon takes the first that it can make, a client the first
in which a daemon listens.
"""

from __future__ import annotations

from collections.abc import Mapping

RUNTIME_DIR_VARIABLE = "PREPSERVER_RUNTIME_DIR"
SYSTEM_RUNTIME_DIR = "/run/prepserver"
MAX_SOCKET_PATH_BYTES = 107
"""Room for the path of a socket in ``sun_path``, less its NUL."""
PRIVATE_LOG = "log"
"""Log file in the directory of a private daemon; its owner writes it, and either process removes it."""


def runtime_dirs(environ: Mapping[str, str], uid: int) -> list[str]:
    """Candidate runtime directories, best first; only one if the environment names it."""
    named = environ.get(RUNTIME_DIR_VARIABLE)
    if named:
        return [named]
    session = environ.get("XDG_RUNTIME_DIR")
    found = [f"{session}/prepserver"] if session else []
    return [*found, SYSTEM_RUNTIME_DIR, f"/tmp/prepserver-{uid}"]  # the daemon checks owner and mode
