"""The machine's cores: how busy they are, and how long a thread waited for one."""

from __future__ import annotations

import os
from pathlib import Path

_STAT = Path("/proc/stat")
_HERTZ = os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """CPU seconds that all processes have spent on the cores this process may use; 0 if the kernel hides it."""
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    total = 0
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:  # systemd's ProcSubset=pid, some containers
        return 0.0
    for line in lines:
        name, *times = line.split()
        if name in mine:
            user, nice, system, _idle, _iowait, *others = map(int, times[:8])  # others: interrupts, steal
            total += user + nice + system + sum(others)
    return total / _HERTZ


def ran_and_waited_s(pid: int) -> tuple[float, float] | None:
    """CPU seconds of a process's main thread, and seconds for which it was ready to run and had no core.

    None if the kernel does not report it, or the process has ended.
    """
    try:
        ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9
