"""Keeps torch from splitting a computation on the CPU among threads.

torch splits each one of more than 32768 elements, and waits, spinning, until the last thread is done. Beside workers
that use all cores this takes longer than in one thread, and several times the CPU time.

torch keeps this limit per thread. But a thread that uses torch for the first time inherits, and keeps, the limit that
any thread set last. So limit only computations, never a wait. Only in a forked child is all of `next()` limited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def in_one_thread(do: Callable[P, T], /, *arguments: P.args, **more: P.kwargs) -> T:
    """Calls `do` while torch is limited to one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = do(*arguments, **more)
    except BaseException:  # no `finally`: an exception in it would keep this frame, and with it lent memory
        torch.set_num_threads(threads)
        raise
    torch.set_num_threads(threads)
    return found
