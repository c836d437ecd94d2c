"""The daemon and its machine in a few words, for reports of runs."""

from __future__ import annotations

import dataclasses
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from prepserver import __version__
from prepserver.config import Settings
from prepserver.memory.budget import machine_bytes
from prepserver.telemetry import cores

_PACKAGES = ("torch", "numpy", "pillow", "simplejpeg", "pyzmq")


def about(settings: Settings, workers: int, memory_bytes: int) -> dict[str, Any]:
    """Machine, versions, and the settings that are not the default ones.

    Args:
        settings: The daemon's.
        workers: Worker processes, with ``auto`` worked out.
        memory_bytes: Budget of the rings, as well.
    """
    default = Settings()
    changed = {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != getattr(default, field.name)
    }
    return {
        "machine": {
            "host": platform.node(), "kernel": platform.release(), "architecture": platform.machine(),
            "cores": cores.usable(), "memory_bytes": machine_bytes()[0],
        },
        "versions": {
            "prepserver": __version__, "Python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "settings": {**changed, "workers": workers, "memory_bytes": memory_bytes},
    }  # fmt: skip


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
