"""Ties a process to its parent, so that nothing outlives the daemon: daemon, zygote, child, one chain.

The kernel sends SIGKILL when the parent ends, however it ends; no guard that could itself be stopped or
stuck is involved.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent_pid: int) -> None:
    """From now on this process is killed when its parent ends.

    The signal comes when the *thread* that started this process ends: start processes from a thread that
    lasts as long as its process, the main thread.

    Args:
        parent_pid: Known from before the fork. Comparing with it, and not with 1, is right in a container
            too, where the daemon itself may be process 1.

    Raises:
        ProcessLookupError: The parent was gone before the tie was made, so no signal will ever come.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        raise ProcessLookupError(f"process {parent_pid}, which started this one, is gone")
