"""Listings of sources: an indexer process makes each, for any number of jobs that wait for it.

Every attach asks again, because the dataset may have changed: with a warm cache the indexer only compares times, which
takes milliseconds. Storage may hang, so the number of indexers is bounded, overall and for each user, and an indexer
ends when no job waits for it any more, or when it has reported nothing for too long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from prepserver.daemon.access import Reading
from prepserver.protocol import work

MOST = 16
"""Most indexers at a time."""

MOST_PER_UID = 4
"""Most indexers of one user; further listings wait."""

SILENT_S = 300.0
"""An indexer reports twice a second how many samples it has found. One that reports nothing for this time hangs with
its storage; a busy network file system may take a minute for one folder."""


_UNLIMITED = Reading()


class Indexing(Protocol):
    """Starts indexers: `WorkerPool`."""

    def build_index(self, request: work.BuildIndex, report: Callable[[Any], None]) -> Callable[[], None]:
        """See `WorkerPool.build_index`."""


class Waiting(Protocol):
    """A job that waits for a listing."""

    @property
    def is_gone(self) -> bool:
        """Whether the job has ended."""

    def scanning(self, samples: int) -> None:
        """The indexer has found `samples` so far."""

    def listed(self, listing: work.Indexed) -> None:
        """The listing is made."""

    def unlistable(self, reason: str) -> None:
        """The source cannot be listed."""


@dataclass(slots=True)
class _Listing:
    """One source to list.

    Attributes:
        uid: The user who asked first.
        request: For the indexer.
        waiting: The jobs that wait.
        cancel: Ends the indexer; None until it is started.
        heard_s: Time of the indexer's last report.
    """

    uid: int
    request: work.BuildIndex
    waiting: list[Waiting]
    cancel: Callable[[], None] | None = None
    heard_s: float = 0.0


class Listings:
    """All listings in progress.

    Args:
        indexing: Starts indexers.
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
        reading: Reading = _UNLIMITED,
        files: Sequence[str] = (),
    ) -> None:
        """Lists `source` and reports to `waiting`, perhaps before this returns.

        Args:
            source: Its wire form, validated.
            waiting: The job that waits.
            uid: The user who asks.
            reading: The folders that may be read.
            files: Files that the ops of its pipeline read.
        """
        key = json.dumps([source, reading.roots, reading.roots_only, files], sort_keys=True)
        if key in self._listings:
            self._listings[key].waiting.append(waiting)
            return
        request = work.BuildIndex(source, str(self._cache_dir), list(reading.roots), reading.roots_only, list(files))
        self._listings[key] = _Listing(uid, request, [waiting])
        self._start()

    def tick(self) -> None:
        """Ends listings that no job waits for, and those that hang; call it several times a second."""
        for key, listing in list(self._listings.items()):
            if key not in self._listings:
                continue  # it was started in the place of one that has just ended, and failed at once
            listing.waiting = [waiting for waiting in listing.waiting if not waiting.is_gone]
            hangs = listing.cancel is not None and self._clock() - listing.heard_s > SILENT_S
            if listing.waiting and not hangs:
                continue
            if listing.cancel is not None:
                listing.cancel()
            text = f"the indexer of the source reported nothing for {SILENT_S:g} s: does the storage answer?"
            self._report(key, work.IndexFailed(text))

    def _start(self) -> None:
        """Starts as many indexers as may run, in the order in which they were asked for."""
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
