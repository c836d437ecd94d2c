"""Feeds give rows: from a daemon's ring (`prepclient.served`), or made in this process (`prepclient.inline`).

`Service` says which feed to use, and how long to wait for it. A feed knows the listing and where the job begins, waits
until the session's next batch is ready, and takes rows back.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from prepclient.chain import RingChain
from prepclient.errors import InvalidSpec
from prepclient.joining import Joining
from prepclient.session import Session, Totals


@dataclass(frozen=True, slots=True)
class Service:
    """What makes the rows, and how long to wait for it."""

    runtime_dir: str | None = None  # the daemon's directory; None for the usual places
    # workers of a private daemon that starts if none runs: a number or "auto"; None starts none
    workers: int | str | None = None
    inline: bool = False  # whether this process makes the rows
    plugins: tuple[str, ...] = ()  # the user's own plug-ins, for this process or a private daemon
    cache: str = ""  # see `prepclient.spec.check_cache`

    joining: Joining = Joining()  # noqa: RUF009 - frozen
    prefetch: int = 0  # rows to have ready ahead; 0 for the daemon's choice
    connect_s: float = 10.0  # longest wait for a daemon at first use
    reconnect_s: float = 300.0  # longest wait for a daemon that went away
    timeout_s: float = 600.0  # longest wait for a batch or an answer

    def __post_init__(self) -> None:
        """Refuses workers for `inline`, and plug-ins for a shared daemon."""
        if self.workers is not None and self.inline:
            raise InvalidSpec(
                f"workers = {self.workers} with inline = True: inline makes the rows in this process, without workers. "
                "Pass only one of them",
                "workers",
            )
        if self.workers is None and not self.inline:
            self.refuse_plugins("Pass workers=N or inline=True to load them for this process only")

    def refuse_plugins(self, more: str) -> None:
        """Raises `InvalidSpec`, ending in `more`, if there are plug-ins: a shared daemon loads none for its clients."""
        if self.plugins:
            raise InvalidSpec(
                f"plugins = {list(self.plugins)}: the configuration of a shared daemon names its plug-ins (load under "
                f"[plugins], or `prepserver start --plugin NAME`); its clients cannot. {more}",
                "plugins",
            )


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to begin."""

    epoch: int = 0  # number of the epoch; without `position` it begins wherever an epoch may begin
    position: int | None = None  # exact position, counted over all shards; None for a fresh start
    epoch_start: int | None = None  # position at which the epoch of `position` began
    rounds: int = 0  # batches from `position` on that this rank has taken already
    # position of all ranks together, which a checkpoint holds; None for `position`
    checkpoint: int | None = None
    # position at which epoch 0 must have begun, if there is no `position`; None for any
    first: int | None = None


class ListingIdentity(NamedTuple):
    """The number of samples of a source, and digests, which are empty if they are not known."""

    samples: int
    content: str  # digest of the samples, which does not depend on where the dataset lies
    digest: str = ""  # digest of the samples and of where they lie
    code: str = ""  # digest of the plug-ins' code; also empty if there are none

    def state(self) -> dict[str, Any]:
        """The part for checkpoints, which does not depend on where the dataset lies."""
        return {"samples": self.samples, "content": self.content} | ({"code": self.code} if self.code else {})

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ListingIdentity:
        """The inverse of `state`; raises `LookupError`, `TypeError` or `ValueError` for anything else."""
        return cls(int(state["samples"]), str(state["content"]), code=str(state.get("code", "")))

    def difference(self, now: ListingIdentity) -> str:
        """What has become of it, in words: the first thing that differs."""
        if (self.samples, self.content) != (now.samples, now.content):
            return (
                f"it had {self.samples} samples (listing {self.content[:12]}), now {now.samples} ({now.content[:12]})"
            )
        if self.code and now.code and self.code != now.code:
            return f"its digest was {self.code[:12]}, and is {now.code[:12]}"
        return f"it has as many samples of the same names and labels ({self.samples}), but its files are others"

    def agrees(self, other: ListingIdentity) -> bool:
        """Whether all values known to both are equal."""
        return all(a == b for a, b in zip(self, other, strict=True) if a != "" and b != "")


class Until(NamedTuple):
    """What a batch maker waits for."""

    is_met: Callable[[], bool]  # called after every message, and at least every `pace_s`
    pace_s: Callable[[], float | None] = lambda: None  # longest time between two calls of `is_met`; None for no limit
    # Whether missing rows hold up the training loop. They do not while its device is busy, and then the feed does not
    # tell the daemon that this job waits.
    holds_up: Callable[[], bool] = lambda: True


class Feed:
    """Rows for one session. The methods that do nothing here suit a feed that makes rows in `wait`."""

    listing: ListingIdentity  # the source's listing
    num_classes: int  # distinct labels, 0 if unknown
    classes: list[str]  # names of the classes by label; empty if there are none, or too many to be sent
    epoch_start: int  # position at which the job's epoch begins
    position: int  # position of its first row
    rows: RingChain  # read access to the rings

    def attach(self, session: Session) -> None:
        """Begins; called once, before the methods below."""

    def poll(self, session: Session) -> None:
        """Handles messages that have arrived, without waiting."""

    def wait(self, session: Session, timeout_s: float, until: Until) -> None:
        """Passes announcements on to the session until `until` is met; raises `PrepClientError` if that fails."""
        raise NotImplementedError

    def release(self, session: Session) -> None:
        """Takes note that `session.released_upto` has moved."""

    def about_job(self, totals: Totals, since_ns: int | None = None) -> dict[str, Any]:
        """What is known about this job now: ``sharing_factor`` and ``verdict``; empty if nothing is known.

        `totals` is what its training loop has received. With `since_ns` (of `time.monotonic_ns`) it also has the
        ``chunks`` that workers have made since then.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends the feed. Idempotent."""
        self.rows.close()
        _closed.add(self.rows)


_closed: weakref.WeakSet[RingChain] = weakref.WeakSet()  # rings of closed feeds that something still refers to


def free_closed_rings() -> None:
    """Frees the rings of closed feeds that are garbage in cycles: each counts as the daemon's memory.

    The traceback of an interrupted notebook cell is such a cycle. Without one, rings are freed when their feed is.
    """
    if _closed:
        _closed.clear()  # once for each: others may still use it
        gc.collect()
