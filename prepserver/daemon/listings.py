"""Listings of sources: made by an indexer process, asked for by any number of jobs at once.

Every attach asks anew, because the dataset may have changed: with a warm cache the indexer only compares
times, which takes milliseconds. An indexer walks where its user sends it, and storage may hang: so the indexers are
bounded in number, in all and for each user, and each ends with the last job that waits for it, or when it has said
nothing for too long.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from prepserver.daemon.access import Reading
from prepserver.protocol import work

MOST = 16
"""Indexers at a time."""

MOST_PER_UID = 4
"""Of one user; the others wait for their turn."""

SILENT_S = 300.0
"""An indexer says twice a second how many samples it has found. One that says nothing for so long hangs with its
storage; a busy network file system may take a minute over one folder."""


class Indexing(Protocol):
    """Who starts indexers."""

    def build_index(self, request: work.BuildIndex, report: Callable[[Any], None]) -> Callable[[], None]:
        """See `WorkerPool.build_index`."""


class Waiting(Protocol):
    """Who waits for a listing."""

    @property
    def is_gone(self) -> bool:
        """Whether nobody is there any more to hear of it."""

    def scanning(self, samples: int) -> None:
        """So many were found so far."""

    def listed(self, listing: work.Indexed) -> None:
        """Here it is."""

    def unlistable(self, reason: str) -> None:
        """There is none."""


@dataclass(slots=True)
class _Listing:
    """One source to be listed.

    Attributes:
        uid: Of who asked first.
        request: For the indexer.
        waiting: Who is told.
        cancel: Ends the indexer; None while it has not been started.
        heard_s: When it gave its last sign of life.
    """

    uid: int
    request: work.BuildIndex
    waiting: list[Waiting]
    cancel: Callable[[], None] | None = None
    heard_s: float = 0.0


class Listings:
    """See the module.

    Args:
        indexing: Who starts indexers.
        cache_dir: Where indexes are kept.
        clock: Monotonic seconds.
    """

    def __init__(self, indexing: Indexing, cache_dir: Path, clock: Callable[[], float]) -> None:
        self._indexing = indexing
        self._cache_dir = cache_dir
        self._clock = clock
        self._listings: dict[str, _Listing] = {}  # in the order of their first questions

    def want(
        self,
        source: dict[str, Any],
        waiting: Waiting,
        uid: int,
        reading: Reading = Reading(),  # noqa: B008
    ) -> None:
        """Lists `source` (a wire form that was validated) and tells `waiting`, maybe before this returns.

        Args:
            source: Which.
            waiting: Who is told.
            uid: Of the user who asks.
            reading: How it may be read.
        """
        key = json.dumps([source, reading.roots, reading.roots_only], sort_keys=True)
        if key in self._listings:
            self._listings[key].waiting.append(waiting)
            return
        request = work.BuildIndex(source, str(self._cache_dir), list(reading.roots), reading.roots_only)
        self._listings[key] = _Listing(uid, request, [waiting])
        self._start()

    def tick(self) -> None:
        """Ends listings that nobody waits for, and those that hang; call it several times a second."""
        for key, listing in list(self._listings.items()):
            listing.waiting = [waiting for waiting in listing.waiting if not waiting.is_gone]
            hangs = listing.cancel is not None and self._clock() - listing.heard_s > SILENT_S
            if listing.waiting and not hangs:
                continue
            if listing.cancel is not None:
                listing.cancel()
            text = f"listing the source made no progress for {SILENT_S:g} s: does its storage answer?"
            self._report(key, work.IndexFailed(text))

    def _start(self) -> None:
        """Starts as many indexers as may run, in the order of the questions."""
        for key, listing in list(self._listings.items()):
            running = [other.uid for other in self._listings.values() if other.cancel is not None]
            if listing.cancel is None and len(running) < MOST and running.count(listing.uid) < MOST_PER_UID:
                listing.heard_s = self._clock()
                listing.cancel = lambda: None  # it counts as running while it is being started
                listing.cancel = self._indexing.build_index(listing.request, partial(self._report, key))

    def _report(self, key: str, message: Any) -> None:
        listing = self._listings[key]
        if isinstance(message, work.Indexing):
            listing.heard_s = self._clock()
            for waiting in list(listing.waiting):
                waiting.scanning(message.samples)
            return
        del self._listings[key]
        for waiting in listing.waiting:
            if isinstance(message, work.Indexed):
                waiting.listed(message)
            else:
                waiting.unlistable(message.reason)
        self._start()
