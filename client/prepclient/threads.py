"""Keeps torch from splitting a computation on the CPU among threads.

torch splits each one of more than 32768 elements, and waits, spinning, until the last thread is done. Beside workers
that use all cores this takes several times the CPU time of one thread, and longer.

The numbers of threads that torch keeps are per thread, but for threads that use torch for the first time: they take the
number set last. So the limit is for the time of a computation, not for that of a wait.
"""

from __future__ import annotations

import torch


def stop_threads() -> int:
    """Limits torch to one thread.

    Returns:
        The argument for `resume_threads`.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def resume_threads(threads: int) -> None:
    """Undoes `stop_threads`; does nothing for 0."""
    if threads:
        torch.set_num_threads(threads)
