"""CPU seconds and memory of process trees, read from /proc.

A tree is a process and its descendants at that moment. The kernel counts the CPU time of a process that has ended with
its parent's children, once the parent has waited for it.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_MIB = 1024  # of the KiB that the kernel gives


def tree(roots: Iterable[int]) -> list[int]:
    """`roots` and their descendants."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    found: list[int] = []
    todo = list(roots)
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children[pid]
    return found


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """User and system seconds of these processes and their ended children, all threads; to about 10 ms each."""
    total = 0
    for pid in pids:
        if fields := _stat(pid):
            total += sum(int(x) for x in fields[11:15])
    return total * _TICK_S


def machine_busy_s() -> float:
    """CPU seconds that all processes of this machine have used since it booted."""
    user, nice, system, _, _, irq, softirq, *_ = (
        int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) * _TICK_S


def memory_mib(pids: Iterable[int]) -> dict[str, float]:
    """Sums of smaps_rollup over these processes, MiB.

    PSS counts a page that k processes map as 1/k in each, so the sum over a tree is what the tree takes, unless
    processes outside it share its pages (another Python with the same torch does).
    """
    total = dict.fromkeys(("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem", "Rss"), 0.0)
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (OSError, ProcessLookupError):
            continue
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            if name in total:
                total[name] += int(rest.split()[0]) / _MIB
    return {name: round(value, 1) for name, value in total.items()}


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()  # the name in brackets may contain spaces
