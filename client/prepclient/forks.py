"""What fork breaks: a client's memory, and torch's pool of threads, for which a child would wait for ever."""

from __future__ import annotations

import os

import torch
from torch.utils.data import get_worker_info

from prepclient.errors import ForkedClient

_forked = False


def _note() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note)


def stop_threads() -> int:
    """In a forked child torch uses no other thread from now on; elsewhere nothing happens.

    Returns:
        What to give to `resume_threads`.
    """
    if not _forked:
        return 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def resume_threads(threads: int) -> None:
    """Undoes `stop_threads`."""
    if threads:
        torch.set_num_threads(threads)


def check_process(pid: int) -> None:
    """Called before anything that a fork breaks: mappings are not inherited, nor are the threads of a library.

    Raises:
        ForkedClient: The process that attached is not this one, but `pid`.
    """
    if os.getpid() != pid:
        raise ForkedClient(
            f"this PrepClient attached in process {pid} and is used in its fork {os.getpid()}, which has "
            "none of its memory. Make a PrepClient in the process that uses it, or `close` this one here first; "
            "a DataLoader around it takes num_workers=0"
        )


def check_copies(pid: int) -> None:
    """Called before a client attaches that was made, or attached before, in process `pid`.

    Raises:
        ForkedClient: Others like it will do the same here.
    """
    worker = get_worker_info()
    if os.getpid() != pid and worker is not None and worker.num_workers > 1:
        raise ForkedClient(
            f"each of the {worker.num_workers} workers of this DataLoader has a copy of this PrepClient and would "
            "get all of its batches. The daemon has the workers: the DataLoader takes num_workers=0"
        )
