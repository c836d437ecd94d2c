"""Fills a run of rows at once, where that gives the same bytes as one by one: rows that are copies, blocks of samples.

Whatever goes wrong here is left to `prepserver.worker.fill`: making the rows one by one finds which sample is bad, and
why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from prepserver.order import NO_SAMPLE
from prepserver.pipeline.record import INDEX
from prepserver.telemetry.page import SEVERAL
from prepserver.transform import DECODING, SampleKey
from prepserver.worker.caching import Caching
from prepserver.worker.spent import Spent
from prepserver.worker.streams import Lane, Stream

Mark = Callable[[int, int], None]  # called with (position, index) before each sample


class AtOnce:
    """Makes several rows at once."""

    def __init__(self, stream: Stream, lanes: Sequence[Lane], mark: Mark, caches: Caching, spent: Spent) -> None:
        self._stream = stream
        self._lanes = lanes
        self._mark = mark
        self._caches = caches
        self._spent = spent
        self._only_copy = all(lane.only_copies for lane in lanes)
        self._takes_blocks = not self._only_copy and all(lane.takes_blocks for lane in lanes)

    def make(self, position: int, indices: list[int], begin: Callable[[int], None]) -> bool:
        """Makes the rows of a run from `position` on; if it returns False, they may hold anything.

        `begin` is called with a lane's place before its rows are rendered.
        """
        if self._only_copy:
            return self._copy_rows(position, indices)
        return self._takes_blocks and self._make_block(position, indices, begin)

    def _is_suspect(self, indices: list[int]) -> bool:
        """Says whether the rows of a run must not be made at once: a sample is quarantined, or a place has none."""
        quarantined = [self._stream.quarantined, *(lane.quarantined for lane in self._lanes)]
        return NO_SAMPLE in indices or not all(each.isdisjoint(indices) for each in quarantined)

    def _copy_rows(self, position: int, indices: list[int]) -> bool:
        """Reads the rows of a run at once, if their source can."""
        if NO_SAMPLE in indices:
            return False
        self._mark(position, indices[0])  # ORDER: it may quarantine samples of this run
        if self._is_suspect(indices):
            return False
        # A cache keeps samples of groups that a worker cannot keep; in order, one group is decoded for many runs.
        group, cache = self._stream.source.group, self._stream.cache
        if cache is not None and len({group(index) for index in indices}) > 1:
            return False
        begun_ns = time.monotonic_ns()
        try:
            self._only_copy = all(self._copy_into(lane, position, indices) for lane in self._lanes)
        except Exception:  # noqa: BLE001 - see the module
            return False
        finally:
            self._spent.read_ns += time.monotonic_ns() - begun_ns
        return self._only_copy

    def _copy_into(self, lane: Lane, position: int, indices: list[int]) -> bool:
        rows = {field.column: lane.rows.run(field.name, position, len(indices)) for field in lane.copied}
        there = len(rows[INDEX])
        rows.pop(INDEX)[:] = indices[:there]
        if not self._stream.source.read_block(indices[:there], rows):
            return False
        return there == len(indices) or self._copy_into(lane, position + there, indices[there:])

    def _make_block(self, position: int, indices: list[int], begin: Callable[[int], None]) -> bool:
        """Reads the samples of a run and makes all rows at once."""
        if self._is_suspect(indices):
            return False
        begun_ns = read_ns = time.monotonic_ns()
        try:
            records = []
            for p, index in enumerate(indices, position):
                self._mark(p, index)  # ORDER: it may quarantine samples of this run
                records.append(self._caches.read(index, self._caches.stamp(index)))
            read_ns = time.monotonic_ns()
            # If the worker dies from here on, any of them may be at fault: the rows will be made again one by one.
            self._mark(position, SEVERAL)
            if self._is_suspect(indices):
                return False
            n = self._stream.order.n
            keys = [SampleKey(self._stream.seed, p // n, index) for p, index in enumerate(indices, position)]
            for place, lane in enumerate(self._lanes):
                begin(place)
                for maker in lane.makers:
                    outs = [
                        [lane.rows.row(field.name, position + k) for field in maker.fields] for k in range(len(keys))
                    ]
                    maker.make_block(records, keys, outs)
                for p, (index, record) in enumerate(zip(indices, records, strict=True), position):
                    lane.copy_values(record, p, index)
        except Exception:  # noqa: BLE001 - see the module
            return False
        finally:
            begin(DECODING)
            self._spent.read_ns += read_ns - begun_ns
            self._spent.make_ns += time.monotonic_ns() - read_ns
        return True
