"""Ties a process to its parent, so that no process outlives the daemon: daemon, zygote and child form a chain.

The kernel sends SIGKILL when the parent ends, however it ends. There is no guard process that could hang.
"""

from __future__ import annotations

import os
import signal

from prepserver.worker.syscalls import prctl

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

ENDS = (signal.SIGINT, signal.SIGTERM)
"""Both may reach the daemon's whole process group: Ctrl-C, `timeout`, a shell's `kill`. The daemon decides."""


def die_with(parent_pid: int) -> None:
    """From now on the kernel kills this process when its parent ends.

    The signal comes when the *thread* that started this process ends: start processes from the main thread. The
    caller notes the parent's pid before the fork. A comparison with 1 instead would fail in a container, where the
    daemon itself may be process 1.

    Raises:
        ProcessLookupError: The parent has ended already, so the signal will never come.
    """
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise ProcessLookupError(f"process {parent_pid}, which started this one, is gone")


def leave_ends_to_parent() -> None:
    """From now on this process ignores `ENDS`, which `Zygote.start` blocked so that none could come too early."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
