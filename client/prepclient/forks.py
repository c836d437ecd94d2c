"""What fork breaks in torch: its pool of threads is not there in a forked child, which would wait for it for ever."""

from __future__ import annotations

import os

import torch

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
