"""Who may have what: pure rules over uids and numbers, of which the daemon asks one when somebody attaches.

The daemon's own user and root could read by themselves whatever the daemon reads, so nothing is kept from them.
For everybody else the daemon reads only below the roots that its settings name. Limits per uid hold for all.
What a path means is not judged here but where it is opened: see `prepserver.source.roots`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prepserver.config import Settings
from prepserver.memory.errors import MemoryShort
from prepserver.schedule.events import Limits


class Denied(Exception):
    """A user may not have that; the text says why, and who could change it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is to be read.

    Attributes:
        roots: Below which it should lie; empty for no such rule.
        roots_only: Whether a source that does not is refused, or read without the rule.
    """

    roots: tuple[str, ...] = ()
    roots_only: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one daemon.

    Attributes:
        own_uid: The daemon's.
        roots: See `Settings.source_roots`.
        memory_per_uid_bytes: See `Settings`; 0 for no limit.
        limits: What else each user may have; see `Settings`.
    """

    own_uid: int
    roots: tuple[str, ...] = ()
    memory_per_uid_bytes: int = 0
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of(cls, settings: Settings, own_uid: int) -> Access:
        """The rules that `settings` ask for."""
        return cls(
            own_uid,
            settings.source_roots,
            settings.memory_per_uid_bytes,
            Limits(settings.jobs_per_uid, settings.streams_per_uid),
        )

    def may_stop(self, uid: int) -> bool:
        """Whether a user may end the daemon."""
        return uid in (0, self.own_uid)

    def reading(self, uid: int, kind: str) -> Reading:
        """How a source of this kind is read for a user.

        A source below the roots is read by their rule for the daemon's user, too: so that all of its readers
        get the same bytes from one stream. One that lies elsewhere is read for that user and root alone.

        Raises:
            Denied: Not at all.
        """
        is_trusted = uid in (0, self.own_uid)
        if kind == "SyntheticImages" or (kind == "Plugin" and is_trusted):  # is made, or reads what the sandbox lets it
            return Reading()
        if kind == "Plugin":
            raise Denied(
                f"this daemon runs as uid {self.own_uid} and makes no Dataset of a plug-in for uid {uid}: its "
                "parameters say what it reads. Plug-in ops may be used by all"
            )
        if is_trusted:
            return Reading(self.roots, roots_only=False)
        if not self.roots:
            raise Denied(
                f"this daemon runs as uid {self.own_uid} and reads no datasets for uid {uid}: it has no source roots. "
                'Whoever runs it can name folders that everybody here may see, as roots = ["/data"] under [sources] '
                "in its --config, or with --root"
            )
        return Reading(self.roots)

    def check_ring(self, uid: int, held_bytes: int, asked_bytes: int) -> None:
        """Whether a user may have one more ring.

        Raises:
            MemoryShort: The limit would be passed.
        """
        limit = self.memory_per_uid_bytes
        if limit and held_bytes + asked_bytes > limit:
            raise MemoryShort(
                asked_bytes,
                limit - held_bytes,
                f"uid {uid} has {held_bytes / 2**20:.0f} MiB of its memory_per_uid = {limit / 2**20:.0f} MiB "
                "(end another job, ask for less with a smaller batch_size or prefetch, or have memory_per_uid raised "
                "under [limits] in the daemon's --config)",
            )
