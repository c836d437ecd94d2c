"""What a running daemon takes from settings that were read again, and what has to wait for a restart."""

from __future__ import annotations

import dataclasses

from prepserver.config import Settings

LIVE = (
    "log_level",
    "memory_bytes",
    "drain_s",
    "source_roots",
    "memory_per_uid_bytes",
    "jobs_per_uid",
    "streams_per_uid",
)
"""Fields of `Settings` that a running daemon can change. They hold for what comes: jobs that are attached keep
their place, rings keep their memory, and workers log at the level that they were started with."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reloaded:
    """What came of reading settings again.

    Attributes:
        settings: As they hold from now on.
        now: Names of those that have changed.
        at_restart: Names of those that were changed and stay as they were.
    """

    settings: Settings
    now: tuple[str, ...]
    at_restart: tuple[str, ...]


def reload(old: Settings, read: Settings) -> Reloaded:
    """Goes from the settings that hold to those that were read."""
    differing = [f.name for f in dataclasses.fields(Settings) if getattr(old, f.name) != getattr(read, f.name)]
    now = tuple(name for name in differing if name in LIVE)
    settings = dataclasses.replace(old, **{name: getattr(read, name) for name in now})
    return Reloaded(settings, now, tuple(name for name in differing if name not in LIVE))
