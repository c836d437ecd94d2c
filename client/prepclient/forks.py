"""Notices processes that no client can work in.

A fork has none of its parent's memory, and would wait forever for torch's threads. A process that imports plug-ins for
a daemon is no training process.
"""

from __future__ import annotations

import os

from torch.utils.data import get_worker_info

from prepclient.errors import ForkedClient, InvalidSpec
from prepserver.protocol.places import NEEDS_GUARD, ONLY_ROWS_VARIABLE

_imported_by = os.getpid()


def is_forked() -> bool:
    """Whether this process is a fork of one that had imported this module."""
    return os.getpid() != _imported_by


def check_process(pid: int) -> None:
    """Raises `ForkedClient` in a fork of `pid`, where a client attached: a fork inherits no mappings and no threads."""
    if os.getpid() != pid:
        raise ForkedClient(
            f"this PrepClient attached in process {pid} and is used in its fork {os.getpid()}, which has "
            "none of its memory. Make a PrepClient in the process that uses it, or `close` this one here first; "
            "a DataLoader around it needs num_workers=0"
        )


def check_copies(pid: int) -> None:
    """Raises `ForkedClient` if several workers of a DataLoader have a copy of a client made in process `pid`."""
    worker = get_worker_info()
    if os.getpid() != pid and worker is not None and worker.num_workers > 1:
        raise ForkedClient(
            f"each of the {worker.num_workers} workers of this DataLoader has a copy of this PrepClient and would "
            "get all of its batches. The daemon has the workers: the DataLoader needs num_workers=0"
        )


def check_trains() -> None:
    """Checks that this process is not one of a daemon, which imports the training script for a plug-in.

    Raises:
        InvalidSpec: It is one. A private daemon would import the script again, and so on without end.
    """
    if ONLY_ROWS_VARIABLE in os.environ:
        raise InvalidSpec(
            "a process that makes rows for a daemon cannot use a PrepClient, so no Dataset and no op can; and "
            f"{NEEDS_GUARD}",
            "plugins",
        )
