"""How much memory rings may still take: the daemon's budget, its cgroups, the machine.

The daemon asks before every ring. No error tells a program that it exceeds the limit of a cgroup: the kernel kills it.
So the answer comes from the limits' files, and a ring that does not fit is refused at attach.
"""

from __future__ import annotations

from pathlib import Path

from prepserver.memory.cgroups import field, memory_limits
from prepserver.memory.errors import MemoryShort

_MEMINFO = Path("/proc/meminfo")

_WORKER_BYTES = 3 << 30, 8 << 30
HEADROOM_BYTES = 256 << 20
"""Kept free under every limit but the daemon's own budget, for workers, page tables and the jobs."""


def check_fits(asked_bytes: int, held_bytes: int, budget_bytes: int, absent_bytes: int = 0) -> None:
    """Refuse a ring of `asked_bytes`; raises `MemoryShort`, which names the limit, if it does not fit.

    The daemon holds rings of `held_bytes`, with untouched pages, of the `budget_bytes` that its ``--memory`` allows. Of
    the pages, `absent_bytes` were never touched, so that the machine counts them as free.
    """
    if asked_bytes > budget_bytes - held_bytes:
        raise MemoryShort(
            asked_bytes,
            budget_bytes - held_bytes,
            f"the daemon's budget for rings is {budget_bytes >> 20} MiB (raise it with `prepserver start "
            "--memory`, or ask for less with a smaller batch_size)",
        )
    free, limit = machine_free_bytes()
    free = max(0, free - absent_bytes)
    if asked_bytes > free:
        raise MemoryShort(asked_bytes, free, limit)


def machine_free_bytes() -> tuple[int, str]:
    """Return the bytes that can be taken before the kernel kills a process, and the name of the limit."""
    free = field(_MEMINFO, "MemAvailable:") * 1024 - HEADROOM_BYTES
    limit = "the machine's free memory (MemAvailable in /proc/meminfo, less 256 MiB)"
    for group in memory_limits():
        if group.left_bytes - HEADROOM_BYTES < free:
            free, limit = group.left_bytes - HEADROOM_BYTES, group.text
    return max(0, free), limit


def machine_bytes() -> tuple[int, str]:
    """Return the most memory that this process could ever have, and the limit with its size."""
    limits = [(group.limit_bytes, group.text) for group in memory_limits()]
    total = field(_MEMINFO, "MemTotal:") * 1024
    return min([(total, f"the machine's memory (MemTotal in /proc/meminfo) is {total >> 20} MiB"), *limits])


def worker_bytes(workers: int) -> int:
    """Return what each worker may allocate for itself: an equal share of the machine, from 3 to 8 GiB."""
    least, most = _WORKER_BYTES
    return max(least, min(most, machine_bytes()[0] // (workers + 1)))
