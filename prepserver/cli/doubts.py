"""Checks settings against the machine before a daemon starts: refuses impossible ones, warns about doubtful ones."""

from __future__ import annotations

import importlib.util
import os
import resource

from prepserver.cli.state import state_dir_of
from prepserver.config import ConfigError, Settings, format_bytes
from prepserver.memory.budget import machine_bytes, machine_free_bytes
from prepserver.pipeline.ops.center_crop import CenterCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.urls import is_url
from prepserver.protocol.layout import RingLayout, ring_fields

_USUAL_BYTES = RingLayout(128, ring_fields(Pipeline.from_ops([CenterCrop(224)]).fields)).nbytes
"""The smallest useful ring: two batches of 64 images of 224 by 224 pixels."""


def doubts(settings: Settings, held_bytes: int = 0) -> list[str]:
    """A sentence for each setting that may work, but probably not as intended.

    A daemon that runs already holds `held_bytes` of its memory.

    Raises:
        ConfigError: A setting cannot work on this machine.
    """
    if settings.engine == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError("engine = \"ray\" (--engine) needs the package ray: pip install 'prepserver[ray]'")
    return [
        *_of_memory(settings.memory_bytes, held_bytes),
        *_of_files(),
        *_of_roots(settings.source_roots),
        *_of_cache(settings.cache_dir),
        *_of_folders("cache folder", "no job can have a cache there", settings.cache_folders),
        *_of_folders("plug-in folder", "no plug-in can read it", settings.plugin_read),
    ]


def _of_memory(memory_bytes: int, held_bytes: int) -> list[str]:
    total, limit = machine_bytes()
    free = machine_free_bytes()[0] + held_bytes
    budget, said = memory_bytes, f"memory = {format_bytes(memory_bytes)}"
    if memory_bytes > total:
        raise ConfigError(f"{said} is too much: {limit}. Set memory (--memory) lower")
    if not memory_bytes:
        budget, said = free // 2, f"memory = auto: {format_bytes(free // 2)}, half of what is free"
    if budget < _USUAL_BYTES:
        advice = "Set memory (--memory) higher" if memory_bytes else "Free memory, or set memory (--memory)"
        return [f"{said}: two batches of 64 images of 224 x 224 pixels need {format_bytes(_USUAL_BYTES)}. {advice}"]
    if budget > free:
        return [f"{said}, but only {format_bytes(free)} is free now: jobs may be refused. Set memory (--memory) lower"]
    return []


def _of_files() -> list[str]:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return []
    effect = "a larger ring, cache or listing cannot be made"
    return [f"files may have at most {limit} bytes: {effect}. Raise ulimit -f (LimitFSIZE= of the unit)"]


def _of_roots(roots: tuple[str, ...]) -> list[str]:
    found = []
    for root in roots:
        if is_url(root):
            continue
        if os.path.isdir(root):  # Path.is_dir raises where a folder above may not be entered
            if not os.access(root, os.R_OK | os.X_OK):
                found.append(f"uid {os.geteuid()}, which runs this daemon, cannot read root {root}")
        elif os.path.exists(root):
            raise ConfigError(f"root {root} is not a folder. Name a folder of datasets in [sources] roots (--root)")
        else:
            found.append(f"uid {os.geteuid()} cannot see root {root}: no dataset below it can be read until it can")
    return found


def _of_folders(what: str, effect: str, folders: tuple[str, ...]) -> list[str]:
    uid = os.geteuid()
    return [
        f"{what} {each} is not a folder: {effect}"
        if os.path.exists(each)
        else f"uid {uid} cannot see {what} {each}: {effect} until it can"
        for each in folders
        if not os.path.isdir(each)
    ]


def _of_cache(cache_dir: str) -> list[str]:
    path = state_dir_of(cache_dir, os.environ)
    there = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not there.is_dir():
        wrong = f"{there} is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        wrong = f"uid {os.geteuid()} may not write to {there}"
    else:
        return []
    if cache_dir:
        raise ConfigError(f"cache_dir = {cache_dir}: {wrong}. Choose another folder (--cache-dir)")
    return [f"{wrong}, so {path} cannot hold listings and logs: no dataset can be listed. Set cache_dir (--cache-dir)"]
