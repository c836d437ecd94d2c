"""Listings of sources: an indexer process makes each of them, for all jobs that wait for it.

Every attach asks again, because the dataset may have changed: with a warm cache the indexer only compares times, which
takes milliseconds. Storage may hang, so the number of indexers is bounded, overall and for each user, and an indexer
ends when no job waits for it any more, or when it has reported nothing for too long. One that dies is replaced.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from prepserver.daemon.access import Reading
from prepserver.daemon.poll import Poll
from prepserver.protocol import work
from prepserver.protocol.schema import ProtocolError
from prepserver.worker.channel import CannotPass, ChannelClosed
from prepserver.worker.child import Child
from prepserver.worker.launch import ZygoteAbsent, ZygoteError

log = logging.getLogger(__name__)

MOST = 16
"""Most indexers at a time."""

MOST_PER_UID = 4
"""Most indexers of one user; further listings wait."""

SILENT_S = 300.0
"""An indexer that reports nothing for this long is ended: a busy network file system may take a minute for one folder,
but not five. Indexers report how many samples they have found, at most ten times a second, whenever their reader calls
`prepserver.source.progress.Progress.found`."""

_TRIES = 3  # an indexer is easily killed, and the jobs that wait for its listing are not to blame
_UNLIMITED = Reading()


class Waiting(Protocol):
    """A job that waits for a listing."""

    @property
    def is_gone(self) -> bool:
        """Whether the job has ended."""

    def hear(self, word: work.Indexing | work.Indexed | work.IndexFailed) -> None:
        """Takes a report of progress, or at the end the listing or the reason why there is none."""


@dataclass(slots=True, eq=False)
class _PendingListing:
    """One source to list."""

    key: str  # the source and how it may be read
    uid: int  # the user who asked first
    request: work.BuildIndex
    waiting: list[Waiting]
    heard_s: float | None = None  # when the indexer was asked for, or reported last; None before the listing's turn
    child: Child | None = None  # the indexer; None until a zygote can fork one
    tries: int = 0  # indexers that were asked for
    at: str = ""  # the file that the indexer began last


class Listings:
    """All listings in progress; their index files are kept in `cache_dir`.

    `spawn` asks the zygote for an indexer, or raises `ZygoteError`.
    """

    def __init__(self, poll: Poll, spawn: Callable[[], Child], cache_dir: Path, clock: Callable[[], float]) -> None:
        self._poll = poll
        self._spawn = spawn
        self._cache_dir = cache_dir
        self._clock = clock
        self._listings: dict[str, _PendingListing] = {}  # in the order of their first questions
        self._is_starting = False

    def want(
        self, source: dict[str, Any], waiting: Waiting, uid: int, reading: Reading = _UNLIMITED,
        files: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Lists `source`, a checked wire form, and reports to `waiting`, perhaps before this returns.

        `reading` says which folders may be read; `files` are those that the ops of the pipeline read.
        """
        key = json.dumps([source, reading.roots, reading.roots_only, files], sort_keys=True)
        if key in self._listings:
            self._listings[key].waiting.append(waiting)
            return
        request = work.BuildIndex(source, str(self._cache_dir), list(reading.roots), reading.roots_only, list(files))
        self._listings[key] = _PendingListing(key, uid, request, [waiting])
        self._start()

    def tick(self) -> None:
        """Ends listings that no job waits for, and those that hang; call it several times a second."""
        for listing in list(self._listings.values()):
            if self._listings.get(listing.key) is not listing:
                continue  # it has ended in this loop: started when another one ended, it failed at once
            listing.waiting = [waiting for waiting in listing.waiting if not waiting.is_gone]
            if not listing.waiting or (listing.heard_s is not None and self._clock() - listing.heard_s > SILENT_S):
                text = f"the indexer of the source reported nothing for {SILENT_S:g} s: does the storage answer?"
                self._report(listing, work.IndexFailed(text))

    def close(self) -> None:
        """Forgets the listings; the indexers end with the zygote."""
        for listing in self._listings.values():
            if listing.child is not None:
                self._poll.forget(listing.child.fileno())
        self._listings.clear()

    @property
    def asked_s(self) -> list[float]:
        """When the indexers were asked for that do not run yet."""
        children = [(each.heard_s, each.child) for each in self._listings.values()]
        return [asked_s for asked_s, child in children if asked_s is not None and child and child.pidfd is None]

    # -- the zygote ---------------------------------------------------------------------------------

    def zygote_ready(self) -> None:
        """Starts the indexers that wait for a zygote."""
        for listing in [each for each in self._listings.values() if each.heard_s is not None and each.child is None]:
            self._start_indexer(listing)

    def zygote_gone(self, reason: str) -> None:
        """Replaces the indexers, which have gone with it."""
        for listing in [each for each in self._listings.values() if each.child is not None]:
            self._lost(listing, reason)

    def holds(self, child: Child) -> bool:
        """Whether `child` still makes a listing."""
        return any(listing.child is child for listing in self._listings.values())

    def exited(self, child: Child, reason: str) -> None:
        """An indexer has ended."""
        for listing in [each for each in self._listings.values() if each.child is child]:
            self._read(listing, child)  # its answer may still be unread
            if listing.child is child:
                self._lost(listing, reason)

    # -- indexers -----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Starts as many indexers as may run, in the order of their first questions."""
        if self._is_starting:
            return  # one failed at once, and the loop goes on
        self._is_starting = True
        try:
            while (listing := self._next()) is not None:
                listing.heard_s = self._clock()
                self._start_indexer(listing)
        finally:
            self._is_starting = False

    def _next(self) -> _PendingListing | None:
        """The first listing that waits for its turn and whose indexer may run now."""
        running = Counter(each.uid for each in self._listings.values() if each.heard_s is not None)
        if running.total() >= MOST:
            return None
        waiting = (each for each in self._listings.values() if each.heard_s is None)
        return next((each for each in waiting if running[each.uid] < MOST_PER_UID), None)

    def _start_indexer(self, listing: _PendingListing) -> None:
        try:
            child = listing.child = self._spawn()
        except ZygoteAbsent:
            return
        except ZygoteError as e:
            self._report(listing, work.IndexFailed(f"cannot list the source now: {e}; try again in a few seconds"))
            return
        listing.tries += 1
        listing.heard_s = self._clock()  # a replacement may be silent for as long as the first one
        self._poll.watch(child.fileno(), lambda: self._read(listing, child))
        try:
            child.send(listing.request)
        except CannotPass as e:
            self._report(listing, work.IndexFailed(f"cannot list the source now: {e}; try again in a few seconds"))
            return
        except ProtocolError as e:  # nothing limits the source, the files of ops and the roots together
            self._report(listing, work.IndexFailed(f"use shorter paths, or fewer: {e}"))
            return
        except ChannelClosed:
            pass  # its end is an event of its own
        self._poll.watch_writing(child.fileno(), child.blocked)

    def _read(self, listing: _PendingListing, child: Child) -> None:
        if listing.child is not child:
            return
        try:
            child.flush()
            for message in child.messages():
                if isinstance(message, work.Indexing) and message.at:
                    listing.at = message.at
                    continue
                self._report(listing, message)
                if listing.child is not child:
                    return  # that was its answer
        except ChannelClosed:
            self._poll.forget(child.fileno())
        except ProtocolError as e:
            self._report(listing, work.IndexFailed(f"protocol error of the indexer: {e}"))
        else:
            self._poll.watch_writing(child.fileno(), child.blocked)

    def _lost(self, listing: _PendingListing, reason: str) -> None:
        log.warning("an indexer ended without an answer: %s (try %d of %d)", reason, listing.tries, _TRIES)
        self._hang_up(listing)
        if listing.tries < _TRIES:
            listing.request, listing.at = replace(listing.request, one_by_one=True), ""
            self._start_indexer(listing)
        else:
            at = f". It was reading {listing.at}: if that is damaged, remove it or write it again" * bool(listing.at)
            self._report(listing, work.IndexFailed(f"the indexer ended: {reason}; {_TRIES} of them did{at}"[:4096]))

    def _report(self, listing: _PendingListing, message: work.Indexing | work.Indexed | work.IndexFailed) -> None:
        listing.heard_s = self._clock()
        is_done = not isinstance(message, work.Indexing)
        if is_done:
            self._end(listing)
        for waiting in list(listing.waiting):
            waiting.hear(message)
        if is_done:
            self._start()

    def _end(self, listing: _PendingListing) -> None:
        del self._listings[listing.key]
        self._hang_up(listing)

    def _hang_up(self, listing: _PendingListing) -> None:
        if listing.child is not None:
            self._poll.forget(listing.child.fileno())
            listing.child.kill()
            listing.child.close()
            listing.child = None
