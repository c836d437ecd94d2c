"""What is left of a daemon: processes, descriptors, ring memory. Counted in /proc, not asked of anybody.

A daemon and all that it starts carry a mark in their environment, which children inherit even when their
parent is gone. So a process that outlived its daemon is found, whoever is its parent now.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import resource
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "PREPSERVER_TEST_MARK"
_RING = "/memfd:prepserver-lane-"


def marked(mark: str) -> dict[int, str]:
    """Pid and command line of every living process with this mark."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and not is_zombie(pid):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[pid] = command.strip()
    return found


def is_zombie(pid: int) -> bool:
    """Whether the process has ended and waits to be reaped (its environment is gone then, too)."""
    return state(pid) == "Z"


def state(pid: int) -> str:
    """One letter, as ps shows it; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rsplit(")", 1)[1].split()[0]


def stopped(pid: int) -> bool:
    """Whether SIGSTOP has taken effect."""
    return state(pid) == "T"


def gone(pid: int) -> bool:
    """Whether there is no such process."""
    return not state(pid)


def cpu_s(pid: int) -> float:
    """For how long a process has computed; 0 if there is none."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    except OSError:
        return 0.0
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Direct children, of any thread; none of a process that has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, task.read_text().split())
    return found


def links(pid: int) -> list[str]:
    """What its open descriptors are, such as ``socket:[1234]``; of those that are closed meanwhile, nothing."""
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(link))
    return found


def fds(pid: int) -> Counter[str]:
    """Open descriptors by kind, without their numbers: two epolls, five sockets and so on."""
    kinds = Counter(re.sub(r":\[\d+\]", "", link) for link in links(pid))
    # A thread asks the driver for its GPUs when it likes.
    return Counter({kind: count for kind, count in kinds.items() if "nvidia" not in kind})


def descriptors() -> int:
    """How many this process has open, after its garbage is collected: what earlier tests left may go at any time."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def descriptors_left(most: int) -> Iterator[None]:
    """This process can open so many descriptors, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(most + 1)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes(pid: int) -> int:
    """What it holds in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def rings(pid: int) -> dict[int, int]:
    """Ring memory that a process maps or holds open: inode to bytes mapped (0 if only held open)."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if _RING in line:
                span, _, _, _, inode, _ = line.split(maxsplit=5)
                low, high = (int(x, 16) for x in span.split("-"))
                found[int(inode)] = found.get(int(inode), 0) + high - low
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if _RING in os.readlink(link):
                    found.setdefault(link.stat().st_ino, 0)
    return found


@dataclass(frozen=True)
class Holdings:
    """What a daemon and its children hold at one moment, free of pids and numbers, so that two can be compared.

    Attributes:
        processes: How many.
        fds: Of the daemon, by kind.
        child_fds: Of its descendants together, by kind.
        rings: Ring segments mapped or open anywhere in them.
        ring_bytes: Mapped by the daemon.
    """

    processes: int
    fds: Counter[str]
    child_fds: Counter[str]
    rings: int
    ring_bytes: int

    def leaks(self, before: Holdings) -> bool:
        """Whether more is held than `before`, or other processes run."""
        # Less is no leak: a zygote may have been seen between a fork and the closing of what it gave to the child.
        return not (
            self.processes == before.processes
            and self.fds <= before.fds
            and self.child_fds <= before.child_fds
            and self.rings <= before.rings
            and self.ring_bytes <= before.ring_bytes
        )


def holdings(daemon_pid: int) -> Holdings:
    """Counts it now, over the daemon and its descendants."""
    descendants: list[int] = []
    queue = [daemon_pid]
    while queue:
        found = children(queue.pop())
        descendants += found
        queue += found
    inodes = {inode for pid in (daemon_pid, *descendants) for inode in rings(pid)}
    child_fds: Counter[str] = Counter()
    for pid in descendants:
        child_fds += fds(pid)
    return Holdings(1 + len(descendants), fds(daemon_pid), child_fds, len(inodes), sum(rings(daemon_pid).values()))


def holders(inodes: set[int]) -> dict[int, set[int]]:
    """Every process of the machine that still maps or holds one of these ring segments, with which."""
    found = {}
    for pid in _pids():
        if held := inodes & set(rings(pid)):
            found[pid] = held
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
