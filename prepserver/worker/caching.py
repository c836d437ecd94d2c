"""Takes samples of a chunk from caches, and puts others there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prepserver.cache.store import Store
from prepserver.source import Record
from prepserver.worker.reading import read_patiently
from prepserver.worker.streams import Stream, Target

_STAMP = (1 << 64) - 1  # an entry holds this many bits of a stamp


class Ready(NamedTuple):
    """A sample that is ready for some targets."""

    record: Record
    where: tuple[int, ...]  # the targets
    is_tail: bool = False  # whether the head of their pipelines has been applied


def without(where: tuple[int, ...], ready: Sequence[Ready]) -> tuple[int, ...]:
    """Returns those targets of `where` that no sample is ready for."""
    return tuple(t for t in where if not any(t in each.where for each in ready)) if ready else where


class Caching:
    """The caches of a stream and some of its lanes, the `targets`.

    A sample is put into a cache before its rows are made.
    """

    def __init__(self, stream: Stream, targets: Sequence[Target]) -> None:
        self._stream = stream
        self._targets = targets
        self._caches: dict[Store, list[int]] = {}  # the targets of each
        for t, target in enumerate(targets):
            if target.cache is not None:
                self._caches.setdefault(target.cache, []).append(t)

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
            record = read_patiently(self._stream.source, index)
            cache.put(index, stamp, record)
        return record

    def ready(self, index: int, target: int) -> Ready:
        """A sample for one target: from its caches, or read, and then kept if there is room."""
        stamp = self.stamp(index)
        found = self.hits(index, stamp, (target,))
        return found[0] if found else self.keep(index, stamp, self.read(index, stamp), (target,))[0]

    def hits(self, index: int, stamp: int | None, where: tuple[int, ...]) -> list[Ready]:
        """The sample with the heads of pipelines applied, from those caches that hold it."""
        found: list[Ready] = []
        if stamp is None:
            return found
        for cache, targets in self._caches.items():
            record = cache.get(index, stamp) if any(t in where for t in targets) else None
            if record is not None:
                found += self._served(record, targets, where)
        return found

    def keep(self, index: int, stamp: int | None, record: Record, where: tuple[int, ...]) -> list[Ready]:
        """Applies the heads of pipelines and keeps the results, if there is room; returns what to make rows from."""
        found: list[Ready] = []
        if stamp is None:
            return [Ready(record, where)] if where else found
        for cache, targets in self._caches.items():
            mine = [t for t in targets if t in where]
            if not mine:
                continue
            try:
                made = self._targets[mine[0]].head_maker.make(record, cache.has_room)
            except Exception:  # noqa: BLE001 - making the row without a cache raises it again, and finds the culprit
                made = None
            if made is not None and cache.put(index, stamp, made):
                found += self._served(made, mine, where)
        rest = without(where, found)
        return [*found, Ready(record, rest)] if rest else found

    def _served(self, record: Record, targets: Iterable[int], where: tuple[int, ...]) -> list[Ready]:
        mine = tuple(t for t in targets if t in where and self._targets[t].head_maker.serves(record))
        return [Ready(record, mine, is_tail=True)] if mine else []
