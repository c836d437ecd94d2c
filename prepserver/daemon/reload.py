"""Which settings a running daemon changes when it reads them again, and which need a restart."""

from __future__ import annotations

import dataclasses

from prepserver.config import Settings

LIVE = (
    "workers", "log_level", "memory_bytes", "drain_s", "source_roots", "memory_per_uid_bytes", "jobs_per_uid",
    "streams_per_uid", "cache_folders", "cache_disk_bytes",
)  # fmt: skip
"""Fields of `Settings` that a running daemon can change. They apply to new jobs and rings; workers keep the log level
with which they were started."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of reading settings again.

    Attributes:
        settings: The settings from now on.
        now: Names of those that have changed.
        at_restart: Names of those that change only at a restart.
    """

    settings: Settings
    now: tuple[str, ...]
    at_restart: tuple[str, ...]


def reload(old: Settings, read: Settings) -> Reloaded:
    """Applies `read` to the `old` settings, as far as a running daemon can."""
    differing = [f.name for f in dataclasses.fields(Settings) if getattr(old, f.name) != getattr(read, f.name)]
    now = tuple(name for name in differing if name in LIVE)
    settings = dataclasses.replace(old, **{name: getattr(read, name) for name in now})
    later = tuple(name for name in differing if name not in LIVE)
    if read.url_roots != old.url_roots:
        # Workers have been given them, and the network or none, when their zygote was started.
        folders = (root for root in read.source_roots if root not in read.url_roots)
        settings = dataclasses.replace(settings, source_roots=(*folders, *old.url_roots))
        later = (*later, "source_roots (its URLs)")
        now = tuple(name for name in now if getattr(settings, name) != getattr(old, name))
    return Reloaded(settings, now, later)
