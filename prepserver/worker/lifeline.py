"""Ties a process to its parent, so that no process outlives the daemon: daemon, zygote and child form a chain.

The kernel sends SIGKILL when the parent ends, however it ends. There is no guard process that could hang.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent_pid: int) -> None:
    """From now on the kernel kills this process when its parent ends.

    The signal comes when the *thread* that started this process ends: start processes from the main thread.

    Args:
        parent_pid: The parent, noted before the fork. A comparison with 1 instead would fail in a container, where the
            daemon itself may be process 1.

    Raises:
        ProcessLookupError: The parent has ended already, so the signal will never come.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        raise ProcessLookupError(f"process {parent_pid}, which started this one, is gone")
