"""How many clients the limit on open files allows: checked at the start, so that descriptors never run out later."""

from __future__ import annotations

import contextlib
import resource

MOST_CLIENTS = 4096
_FEWEST_CLIENTS = 4
_OWN = 64  # the daemon's files, libzmq's, the log's, indexers, and a reserve
_PER_WORKER = 6
_PER_CLIENT = 8
"""Connection, pidfd, two of the control line, its ring and the one before, and moves that wait to be sent."""


class DescriptorsShort(RuntimeError):
    """The limit leaves no room for clients; the text says what to raise."""


def raise_limit() -> int:
    """Raises the limit on open files as far as allowed (shells usually set 1024), and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def clients_allowed(limit: int, workers: int) -> int:
    """Most connections on the attach socket of a daemon with `workers` workers and a `limit` of open files.

    Raises:
        DescriptorsShort: Fewer than `_FEWEST_CLIENTS`.
    """
    if limit == resource.RLIM_INFINITY:
        return MOST_CLIENTS
    base = _OWN + _PER_WORKER * workers
    clients = (limit - base) // _PER_CLIENT
    if clients < _FEWEST_CLIENTS:
        raise DescriptorsShort(
            f"the limit of {limit} open files is too low for {workers} workers and {_FEWEST_CLIENTS} clients: raise it "
            f"to {base + _FEWEST_CLIENTS * _PER_CLIENT} or more (ulimit -Hn, LimitNOFILE= of the unit), or start fewer "
            "workers"
        )
    return min(clients, MOST_CLIENTS)
