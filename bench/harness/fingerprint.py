"""The machine and the versions: without them a figure means nothing. No host names, no paths."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pynvml

from bench.harness.proc import machine_busy_s

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "bench" / "out"
_LOOK_S = 1.0
_PACKAGES = ("torch", "numpy", "simplejpeg", "pillow", "pyzmq", "msgpack")


def fingerprint() -> dict[str, Any]:
    """The machine and the software, as plain data."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": _gpus(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "busy_before_cores": _busy_cores(),
    }


def _busy_cores() -> float:
    """Cores in use now. The load average would still include the case before."""
    before, began_s = machine_busy_s(), time.monotonic()
    time.sleep(_LOOK_S)
    return round((machine_busy_s() - before) / (time.monotonic() - began_s), 2)


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[str]:
    """The names of the GPUs. Asked of NVML, because a process that has used CUDA cannot fork jobs that use it."""
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [pynvml.nvmlDeviceGetName(handle) for handle in handles]
    except pynvml.NVMLError:
        return []


def commit() -> str:
    """The commit of this checkout, with ``+`` if tracked files differ from it; empty outside of git."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def line(machine: dict[str, Any]) -> str:
    """The fingerprint as one line."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    gpus = "".join(f", {name}" for name in machine.get("gpus", []))
    return (
        f"{machine['cpu']}, {machine['cores']} cores{gpus}, {machine['memory_gib']:g} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, {packages}; commit {machine['commit'] or '?'}, {machine['date']}, "
        f"{machine['busy_before_cores']:g} cores busy before the run"
    )


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True, timeout=30
    ).stdout.strip()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
