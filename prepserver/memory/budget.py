"""How much memory rings may still take: the daemon's budget, its cgroups, the machine.

Asked before every ring. Going over a cgroup's limit is not an error that a program can catch: the kernel
kills. So the answer is worked out from the files, and a ring that does not fit is refused at attach.
"""

from __future__ import annotations

from pathlib import Path

from prepserver.memory.errors import MemoryShort

HEADROOM_BYTES = 256 << 20
"""Left alone on every limit but the daemon's own budget: workers, page tables, the jobs themselves."""


def check_fits(asked_bytes: int, held_bytes: int, budget_bytes: int) -> None:
    """Refuses a ring that does not fit.

    Args:
        asked_bytes: Size of the new ring.
        held_bytes: Rings that the daemon holds already (their untouched pages count as taken).
        budget_bytes: The daemon's own limit (``--memory``).

    Raises:
        MemoryShort: Naming the tightest limit.
    """
    if asked_bytes > budget_bytes - held_bytes:
        raise MemoryShort(
            asked_bytes,
            budget_bytes - held_bytes,
            f"the daemon's budget for rings is {budget_bytes >> 20} MiB (raise it with `prepserver start "
            "--memory`, or ask for less with a smaller batch_size or prefetch)",
        )
    free, limit = machine_free_bytes()
    if asked_bytes > free:
        raise MemoryShort(asked_bytes, free, limit)


def machine_free_bytes() -> tuple[int, str]:
    """Bytes that can be taken before the kernel would kill, and the name of the limit that says so."""
    free = _mem_available() - HEADROOM_BYTES
    limit = "the machine's free memory (MemAvailable in /proc/meminfo, less 256 MiB)"
    for group in _cgroups():
        most = _number(group / "memory.max")
        now = _number(group / "memory.current")
        if most is None or now is None:
            continue
        # page cache counts in memory.current and goes away when asked
        left = most - now + _inactive_file(group) - HEADROOM_BYTES
        if left < free:
            free = left
            limit = f"{group}/memory.max is {most >> 20} MiB (systemd: MemoryMax=, docker: --memory)"
    return max(0, free), limit


def _mem_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroups() -> list[Path]:
    """This process's cgroup (version 2) and its parents, innermost first."""
    root = Path("/sys/fs/cgroup")
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                leaf = root / line[3:].lstrip("/")
                return [p for p in (leaf, *leaf.parents) if p.is_relative_to(root)]
    except OSError:
        pass
    return []


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _inactive_file(group: Path) -> int:
    try:
        for line in (group / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
