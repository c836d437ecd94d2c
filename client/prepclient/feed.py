"""Feeds are where rows come from: a daemon's ring (`prepclient.served`), or this process (`prepclient.inline`).

A feed knows the listing and the start, waits until the session's next batch is ready, and takes rows back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from prepclient.chain import RingChain
from prepclient.session import Session, Totals


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin.

    Attributes:
        epoch: Number of the epoch. Without `position` it begins wherever an epoch may begin.
        position: Exact position, counted over all shards; None for a fresh start.
        epoch_start: Position at which the epoch of `position` began.
        rounds: Batches from `position` on that this rank has taken already.
        checkpoint: Position of all ranks together, which a checkpoint taken here holds; None for `position`.
        first: Start of epoch 0, which fixes the start of `epoch` if there is no `position`; None for any.
    """

    epoch: int = 0
    position: int | None = None
    epoch_start: int | None = None
    rounds: int = 0
    checkpoint: int | None = None
    first: int | None = None


class Listing(NamedTuple):
    """The samples of a source.

    Attributes:
        samples: Number of samples.
        content: Digest of the samples, independent of the dataset's place; empty if unknown.
        digest: Digest of the samples and the place; empty if unknown.
        code: Digest of the plug-ins' code; empty if there are none.
    """

    samples: int
    content: str
    digest: str = ""
    code: str = ""

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the part that does not depend on the dataset's place."""
        return {"samples": self.samples, "content": self.content} | ({"code": self.code} if self.code else {})

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Listing:
        """The inverse of `state`.

        Raises:
            LookupError, TypeError, ValueError: Not such a state.
        """
        return cls(int(state["samples"]), str(state["content"]), code=str(state.get("code", "")))

    def agrees(self, other: Listing) -> bool:
        """Whether all values that both know are equal."""
        return all(a == b for a, b in zip(self, other, strict=True) if a != "" and b != "")


class Feed:
    """Rows for one session. The methods here suit a feed that makes rows in `wait`.

    Attributes:
        listing: The source's listing.
        num_classes: Distinct labels, 0 if unknown.
        epoch_start: Position at which the job's epoch begins.
        position: Position of its first row.
        rows: Read access to the rings.
    """

    listing: Listing
    num_classes: int
    epoch_start: int
    position: int
    rows: RingChain

    def attach(self, session: Session) -> None:
        """Begins; called once, before the methods below."""

    def poll(self, session: Session) -> None:
        """Handles messages that have arrived, without waiting."""

    def wait(
        self,
        session: Session,
        timeout_s: float,
        until: Callable[[], bool],
        pace_s: Callable[[], float | None] = lambda: None,
        held_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """Waits until `until()` is true.

        Args:
            session: Receives announcements.
            timeout_s: Longest wait.
            until: Called after every message, and at the pace of `pace_s`.
            pace_s: Longest time until the next call of `until`; None for no limit.
            held_up: Whether missing rows hold up the training loop. While its device is busy they do not, and the feed
                does not tell the daemon that this job waits.

        Raises:
            PrepClientError: The rows cannot come, or did not come in time.
        """
        raise NotImplementedError

    def release(self, session: Session) -> None:
        """Passes on that `session.released_upto` has moved."""

    def about_job(self, totals: Totals, since_ns: int | None = None) -> dict[str, Any]:
        """What is known about this job now: ``sharing_factor`` and ``verdict``; empty if nothing is.

        Args:
            totals: What its training loop has received.
            since_ns: If given, also the ``chunks`` that workers have made since then (`time.monotonic_ns`).
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends. Idempotent."""
        self.rows.close()
