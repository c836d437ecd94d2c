"""What makes the rows of a job, and how long it waits for that."""

from __future__ import annotations

from dataclasses import dataclass

from prepclient.errors import InvalidSpec
from prepclient.joining import Joining


@dataclass(frozen=True, slots=True)
class Service:
    """What makes the rows, and how long to wait for it.

    Attributes:
        runtime_dir: The daemon's directory; None for the usual places.
        workers: Workers of a private daemon if no daemon runs, a number or "auto"; None for no private one.
        inline: Whether this process makes the rows.
        plugins: The user's own plug-ins, for this process or a private daemon.
        cache: See `prepclient.spec.check_cache`.
        joining: How to join the streams of others.
        prefetch: Rows to have ready ahead, 0 for the daemon's choice.
        connect_s: Longest wait for a daemon at first use.
        reconnect_s: Longest wait for a daemon that went away.
        timeout_s: Longest wait for a batch or an answer.
    """

    runtime_dir: str | None
    workers: int | str | None
    inline: bool
    plugins: tuple[str, ...]
    cache: str
    joining: Joining
    prefetch: int
    connect_s: float
    reconnect_s: float
    timeout_s: float

    def __post_init__(self) -> None:
        """Refuses plug-ins for a shared daemon."""
        if self.workers is None and not self.inline:
            self.refuse_plugins("Or pass workers=N or inline=True, too")

    def refuse_plugins(self, more: str) -> None:
        """Raises `InvalidSpec` if there are plug-ins: a shared daemon loads none for its clients."""
        if self.plugins:
            raise InvalidSpec(
                f"plugins = {list(self.plugins)}: the configuration of a shared daemon names its plug-ins (load under "
                f"[plugins], or `prepserver start --plugin NAME`), not its clients. {more}",
                "plugins",
            )
