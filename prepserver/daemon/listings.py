"""Listings of sources: made by an indexer process, asked for by any number of jobs at once.

Every attach asks anew, because the dataset may have changed: with a warm cache the indexer only compares
times, which takes milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prepserver.daemon.access import Reading
from prepserver.protocol import work


class Indexing(Protocol):
    """Who starts indexers."""

    def build_index(self, request: work.BuildIndex, report: Callable[[Any], None]) -> None:
        """See `WorkerPool.build_index`."""


class Waiting(Protocol):
    """Who waits for a listing."""

    def scanning(self, samples: int) -> None:
        """So many were found so far."""

    def listed(self, listing: work.Indexed) -> None:
        """Here it is."""

    def unlistable(self, reason: str) -> None:
        """There is none."""


@dataclass(slots=True)
class _Running:
    waiting: list[Waiting] = field(default_factory=list)


class Listings:
    """See the module.

    Args:
        indexing: Who starts indexers.
        cache_dir: Where indexes are kept.
    """

    def __init__(self, indexing: Indexing, cache_dir: Path) -> None:
        self._indexing = indexing
        self._cache_dir = cache_dir
        self._running: dict[str, _Running] = {}

    def want(self, source: dict[str, Any], waiting: Waiting, reading: Reading = Reading()) -> None:  # noqa: B008
        """Lists `source` (a wire form that was validated) and tells `waiting`, maybe before this returns."""
        key = json.dumps([source, reading.roots, reading.roots_only], sort_keys=True)
        running = self._running.get(key)
        if running is not None:
            running.waiting.append(waiting)
            return
        self._running[key] = _Running([waiting])
        request = work.BuildIndex(source, str(self._cache_dir), list(reading.roots), reading.roots_only)
        self._indexing.build_index(request, lambda message: self._report(key, message))

    def _report(self, key: str, message: Any) -> None:
        if isinstance(message, work.Indexing):
            for waiting in list(self._running[key].waiting):
                waiting.scanning(message.samples)
            return
        for waiting in self._running.pop(key).waiting:
            if isinstance(message, work.Indexed):
                waiting.listed(message)
            else:
                waiting.unlistable(message.reason)
