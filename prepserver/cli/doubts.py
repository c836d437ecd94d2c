"""Checks settings against the machine before a daemon starts: refuses impossible ones and warns of doubtful ones."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from prepserver.config import ConfigError, Settings, format_bytes
from prepserver.memory.budget import machine_bytes, machine_free_bytes
from prepserver.pipeline.ops.center_crop import CenterCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.urls import is_url
from prepserver.protocol.layout import RingLayout, ring_fields


def _ring_bytes(rows: int, side: int) -> int:
    return RingLayout(rows, ring_fields(Pipeline.from_ops([CenterCrop(side)]).fields)).nbytes


_LEAST_BYTES = _ring_bytes(2, 1)
"""The smallest possible ring: two batches of one image of one pixel."""

_USUAL_BYTES = _ring_bytes(128, 224)
"""The smallest useful ring: two batches of 64 images of 224 by 224 pixels."""


def doubts(settings: Settings) -> list[str]:
    """A sentence for each setting that may work, but probably not as intended.

    Raises:
        ConfigError: A setting cannot work on this machine.
    """
    if settings.engine == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs the package ray: pip install 'prepserver[ray]'")
    return [*_of_memory(settings.memory_bytes), *_of_roots(settings.source_roots), *_of_cache(settings.cache_dir)]


def _of_memory(memory_bytes: int) -> list[str]:
    total, limit = machine_bytes()
    free = machine_free_bytes()[0]
    budget, said = memory_bytes, f"memory = {format_bytes(memory_bytes)}"
    if memory_bytes > total:
        raise ConfigError(f"{said} is more than {limit}: {format_bytes(total)}. Set --memory lower")
    if not memory_bytes:
        budget, said = free // 2, f"memory = auto is {format_bytes(free // 2)}, half of what is free"
    elif memory_bytes < _LEAST_BYTES:
        raise ConfigError(
            f"memory = {memory_bytes} bytes: no ring is smaller than {_LEAST_BYTES} bytes. Add a unit: --memory 8G"
        )
    if budget < _USUAL_BYTES:
        advice = "Set --memory higher" if memory_bytes else "Free memory, or set --memory"
        return [f"{said}: two batches of 64 images of 224 x 224 pixels need {format_bytes(_USUAL_BYTES)}. {advice}"]
    if budget > free:
        return [f"{said}, but only {format_bytes(free)} is free now: jobs may be refused. Set --memory lower"]
    return []


def _of_roots(roots: tuple[str, ...]) -> list[str]:
    found = []
    for root in roots:
        if is_url(root):
            continue
        path = Path(root)
        if path.is_dir():
            if not os.access(path, os.R_OK | os.X_OK):
                found.append(f"uid {os.geteuid()}, which runs this daemon, cannot read root {root}")
        elif path.exists():
            raise ConfigError(f"root {root} is not a folder. Name the folder that holds the datasets with --root")
        else:
            found.append(f"root {root} does not exist: no dataset below it can be read until it does")
    return found


def _of_cache(cache_dir: str) -> list[str]:
    if not cache_dir:
        return []
    path = Path(cache_dir).absolute()
    there = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not there.is_dir():
        raise ConfigError(f"cache_dir = {cache_dir}: {there} is not a folder. Choose another --cache-dir")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"cache_dir = {cache_dir}: uid {os.geteuid()} may not write to {there}. Choose another --cache-dir"
        )
    return []
