"""What each user may read and use. Pure.

The daemon's own user and root could read anyway what the daemon can, so it reads every source for them. For other users
it reads only below the roots that its settings name. Limits for each uid apply to all users. Paths are checked where
they are opened: see `prepserver.source.roots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prepserver.config import Settings, format_bytes
from prepserver.memory.errors import MemoryShort
from prepserver.pipeline.declared import PluginSpec
from prepserver.pipeline.source import SourceSpec
from prepserver.schedule.events import Limits


class Denied(Exception):
    """A user has no permission; the text says why, and who can change it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a source."""

    roots: tuple[str, ...] = ()  # folders that should hold it; empty for any folder
    roots_only: bool = True  # whether sources outside the roots are refused, not read


@dataclass(slots=True)
class Access:
    """The rules of one daemon: its settings name the roots, and the limits of each user."""

    own_uid: int
    settings: Settings = field(default_factory=Settings)  # may be read again

    @property
    def limits(self) -> Limits:
        """The limits that the coordinator checks."""
        return Limits(self.settings.jobs_per_uid, self.settings.streams_per_uid)

    def is_trusted(self, uid: int) -> bool:
        """Whether a user could do without the daemon what it can do, and may stop it."""
        return uid in (0, self.own_uid)

    def reading(self, uid: int, source: SourceSpec, files: Sequence[str] = ()) -> Reading:
        """How a source, and the `files` that the ops of a pipeline read, are read for a user.

        For root and the daemon's user, too, a source below the roots is read with the check for roots, so that all
        users share one stream. A source elsewhere is read only for those two.

        Raises:
            Denied: The user may not read it.
        """
        is_trusted = self.is_trusted(uid)
        parts = list(source.parts())
        is_plugin = any(isinstance(part, PluginSpec) for part in parts)
        if is_plugin and not is_trusted:
            raise Denied(
                f"this daemon runs as uid {self.own_uid} and makes no Dataset of a plug-in for uid {uid}, because its "
                "parameters say what it reads. Everyone may use plug-in ops"
            )
        # Such a source reads no files, or, as a plug-in, those that the sandbox allows.
        if not any(part.named_paths() for part in parts) and (is_plugin or not files):
            return Reading()
        if is_trusted:
            return Reading(self.settings.source_roots, roots_only=False)
        if not self.settings.source_roots:
            raise Denied(
                f"this daemon runs as uid {self.own_uid} and reads no datasets for uid {uid}: it has no source roots. "
                'Its operator can name folders that all users may read, as roots = ["/data"] under [sources] '
                "in its --config, or with --root"
            )
        return Reading(self.settings.source_roots)

    def check_ring(self, uid: int, held_bytes: int, asked_bytes: int) -> None:
        """Checks that a user may have one more ring.

        Raises:
            MemoryShort: It would exceed the user's limit.
        """
        limit = self.settings.memory_per_uid_bytes
        if limit and held_bytes + asked_bytes > limit:
            raise MemoryShort(
                asked_bytes,
                limit - held_bytes,
                f"uid {uid} has {format_bytes(held_bytes)} of its memory_per_uid = {format_bytes(limit)} "
                "(end another job, ask for less with a smaller batch_size, or have memory_per_uid raised "
                "under [limits] in the daemon's --config)",
            )
