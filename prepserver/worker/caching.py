"""Takes samples of a chunk from caches, and puts others there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prepserver.cache.store import Store
from prepserver.source import Record, Source
from prepserver.transform import after_head
from prepserver.worker.reading import read_patiently
from prepserver.worker.streams import Lane, Stream

_NEIGHBOURS_S = 0.2
"""For a sample's neighbours, or as long as reading the sample took, so that it takes about twice its time at most. The
next one of them that is read goes on."""

_SOON = 1 << 12
"""Samples of other groups that may come in between: sources take turns, and `Subset` has any order. Some ms."""

_STAMP = (1 << 64) - 1  # an entry holds this many bits of a stamp


class Ready(NamedTuple):
    """A sample that is ready for some lanes."""

    record: Record
    where: tuple[int, ...]  # the places of these lanes in `fill`'s sequence
    is_tail: bool = False  # whether the head of their pipelines has been applied


def without(where: tuple[int, ...], ready: Sequence[Ready]) -> tuple[int, ...]:
    """Returns those lanes of `where` that no sample is ready for."""
    return tuple(place for place in where if not any(place in each.where for each in ready)) if ready else where


def _neighbours(source: Source, index: int) -> Iterator[int]:
    """Yields samples of the same group, the nearest first: several workers may be at different places of a group."""
    group = source.group(index)
    for step in (1, -1) if group is not None else ():
        at, others = index + step, 0
        while 0 <= at < len(source) and others < _SOON:
            others += 1
            if source.group(at) == group:
                others = 0
                yield at
            at += step


class Caching:
    """The caches of a stream and some of its lanes.

    A sample is put into a cache before its rows are made.
    """

    def __init__(self, stream: Stream, lanes: Sequence[Lane]) -> None:
        self._stream = stream
        self._lanes = lanes
        self._caches: dict[Store, list[int]] = {}  # the places of the lanes of each
        for place, lane in enumerate(lanes):
            if lane.cache is not None:
                self._caches.setdefault(lane.cache, []).append(place)

    def stamp(self, index: int) -> int | None:
        """The stamp of a sample; None if no cache is used for it."""
        if not self._caches and self._stream.cache is None:
            return None
        try:
            return self._stream.source.stamp(index) & _STAMP
        except Exception:  # noqa: BLE001 - its file is gone, or worse: reading it raises the reason
            return None

    def read(self, index: int, stamp: int | None) -> Record:
        """The sample as stored: from a cache, or read, and then kept if there is room."""
        cache = self._stream.cache
        if cache is None or stamp is None:
            return read_patiently(self._stream.source, index)
        record = cache.get(index, stamp)
        if record is None:
            begun_s = time.monotonic()
            record = read_patiently(self._stream.source, index)
            if cache.put(index, stamp, record):
                self._put_neighbours(cache, index, max(_NEIGHBOURS_S, time.monotonic() - begun_s))
        return record

    def _put_neighbours(self, cache: Store, index: int, most_s: float) -> None:
        until_s = time.monotonic() + most_s
        for other in _neighbours(self._stream.source, index):
            if time.monotonic() > until_s:
                break
            if cache.holds(other) or other in self._stream.quarantined or (stamp := self.stamp(other)) is None:
                continue
            try:
                record = self._stream.source.read(other)
            except Exception:  # noqa: BLE001 - reading it in its turn finds the reason
                continue
            if not cache.put(other, stamp, record):
                break

    def ready(self, index: int, place: int) -> Ready:
        """A sample for one lane: from its caches, or read, and then kept if there is room."""
        stamp = self.stamp(index)
        found = self.hits(index, stamp, (place,))
        return found[0] if found else self.keep(index, stamp, self.read(index, stamp), (place,))[0]

    def hits(self, index: int, stamp: int | None, where: tuple[int, ...]) -> list[Ready]:
        """The sample with the heads of pipelines applied, from those caches that hold it."""
        found: list[Ready] = []
        if stamp is None:
            return found
        for cache, lanes in self._caches.items():
            record = cache.get(index, stamp) if any(place in where for place in lanes) else None
            if record is not None:
                found += self._served(record, lanes, where)
        return found

    def keep(self, index: int, stamp: int | None, record: Record, where: tuple[int, ...]) -> list[Ready]:
        """Applies the heads of pipelines and keeps the results, if there is room; returns what to make rows from."""
        found: list[Ready] = []
        if stamp is None:
            return [Ready(record, where)] if where else found
        for cache, lanes in self._caches.items():
            mine = [place for place in lanes if place in where]
            if not mine:
                continue
            first = self._lanes[mine[0]]
            try:
                made = after_head(first.makers[0], first.head.count, record, cache.has_room)
            except Exception:  # noqa: BLE001 - making the row without a cache raises it again, and finds the culprit
                made = None
            if made is not None and cache.put(index, stamp, made):
                found += self._served(made, mine, where)
        rest = without(where, found)
        return [*found, Ready(record, rest)] if rest else found

    def _served(self, record: Record, lanes: Iterable[int], where: tuple[int, ...]) -> list[Ready]:
        mine = tuple(place for place in lanes if place in where and self._lanes[place].is_served_by(record))
        return [Ready(record, mine, is_tail=True)] if mine else []
