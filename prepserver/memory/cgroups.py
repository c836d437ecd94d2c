"""What the cgroups of this process allow: memory and CPU time, by version 1 or 2 of the kernel's interface.

The files are read at each call, since an operator may change a limit at any time. In a container whose cgroup namespace
is the host's, the path in /proc/self/cgroup does not exist below the mount; then the files of the mount itself, which
are the container's, are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


class MemoryLimit(NamedTuple):
    """One cgroup's limit on memory."""

    left_bytes: int  # what may still be taken; page cache counts as free, because the kernel drops it on demand
    text: str  # the file that sets the limit, the limit, and how to change it, for messages
    limit_bytes: int  # the limit itself


def memory_limits() -> Iterator[MemoryLimit]:
    """Yield the limit of each cgroup of this process that has one, innermost first."""
    for group in _groups("memory"):
        for limit, usage, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
        ):
            most, now = _number(group / limit), _number(group / usage)
            if most is not None and now is not None:
                left = most - now + field(group / "memory.stat", cache)
                text = f"{group}/{limit} is {most >> 20} MiB (systemd: MemoryMax=, docker: --memory)"
                yield MemoryLimit(left, text, most)


def cpus() -> float | None:
    """Return the CPUs' worth of time that this process may use; None where no cgroup limits it."""
    found: list[float] = []
    for group in _groups("cpu"):
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")  # version 1
        words = _words(group / "cpu.max")
        if len(words) == 2 and all(word.isdigit() for word in words):
            quota, period = int(words[0]), int(words[1])
        if quota is not None and period:
            found.append(quota / period)
    return min(found, default=None)


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroups for a controller, and their parents, innermost first."""
    try:
        lines = _SELF.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _ROOT / controller if controllers else _ROOT  # version 2 has all controllers in one tree
        leaf = root / path.lstrip("/")
        yield from (folder for folder in (leaf, *leaf.parents) if folder.is_relative_to(root))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """Return the number in a file; None if it is absent, "max" or -1, which mean no limit."""
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def field(path: Path, name: str) -> int:
    """Return the number after `name` in a file of lines such as ``MemTotal: 16``; 0 if there is none."""
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return next((int(row[1]) for row in rows if row[:1] == [name]), 0)
    except OSError:
        return 0
