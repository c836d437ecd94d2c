"""The daemon and its machine in a few words, for reports of runs."""

from __future__ import annotations

import dataclasses
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from prepserver import __version__
from prepserver.config import Settings, usable_cores
from prepserver.memory.budget import machine_bytes

_PACKAGES = ("torch", "numpy", "pillow", "simplejpeg", "pyzmq")


def about(settings: Settings, workers: int, memory_bytes: int) -> dict[str, Any]:
    """Machine, versions, and the settings that are not the default ones, with ``auto`` worked out."""
    fields = dataclasses.fields(settings)
    changed = {each.name: value for each in fields if (value := getattr(settings, each.name)) != each.default}
    return {
        "machine": {
            "host": platform.node(), "kernel": platform.release(), "architecture": platform.machine(),
            "cores": usable_cores(), "memory_bytes": machine_bytes()[0],
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
    except PackageNotFoundError:  # installed without metadata, as by some distributions
        return "unknown"
