"""How many clients the limit on open files allows. It bounds the connections, so that descriptors never run out."""

from __future__ import annotations

import contextlib
import resource

from prepserver.telemetry.logs import counted

MOST_CLIENTS = 4096
_FEWEST_CLIENTS = 4
_OWN = 64  # the daemon's files, the log's, indexers, and a reserve
_PER_WORKER = 6
_PER_CLIENT = 6
"""Lease, line, pidfd, ring, the ring that it moves away from, and one more while the line is made."""


class DescriptorsShort(RuntimeError):
    """The limit on open files leaves no room for clients; the text says what to raise."""


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
            f"the limit of {limit} open files is too low for {counted(workers, 'worker')} and {_FEWEST_CLIENTS} "
            f"clients: raise it to {base + _FEWEST_CLIENTS * _PER_CLIENT} or more (ulimit -Hn, LimitNOFILE= of the "
            "unit), or start fewer workers"
        )
    return min(clients, MOST_CLIENTS)
