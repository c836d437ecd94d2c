"""The rings that the daemon holds: made within the budget, prefaulted behind the scenes, dropped with their lane."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from prepserver.memory.budget import check_fits
from prepserver.memory.errors import MemoryShort, SegmentError
from prepserver.memory.mapping import Mapping
from prepserver.memory.segment import create_segment
from prepserver.protocol.layout import Field, RingLayout, whole_page_rows

_ROUNDS_WANTED = 4  # one in the client's hands, one on its way, two to absorb a slow sample
_ROUNDS_NEEDED = 2  # with fewer, filling and reading would take turns
_SMALL_RING_BYTES = 256 << 20
_SMALL_RING_ROWS = 512  # where rows are small, a longer ring costs little and lets jobs drift and join


def ring_rows(row_bytes: int, round_rows: int, prefetch: int, rows_in_work: int, views: int = 1) -> tuple[int, int]:
    """Rows of a new ring: (wanted, needed).

    Args:
        row_bytes: Of one image field.
        round_rows: ``batch_size * world_size`` of the job that makes the lane.
        prefetch: Rows that it wants ahead, or 0.
        rows_in_work: Rows that the pool has in its hands when it is busy.
        views: Image fields.

    Returns:
        Wanted rows, and the fewest that work. Wanted fills whole pages where that is cheap, so that
        clients can map it twice end to end.
    """
    needed = _ROUNDS_NEEDED * round_rows
    wanted = max(_ROUNDS_WANTED * round_rows, needed + 2 * rows_in_work, prefetch + round_rows)
    if _SMALL_RING_ROWS * views * row_bytes <= _SMALL_RING_BYTES:
        wanted = max(wanted, _SMALL_RING_ROWS)
    step = whole_page_rows(row_bytes)
    rounded = -(-wanted // step) * step
    return (rounded if rounded <= 2 * wanted else wanted), needed


@dataclass(slots=True)
class LaneRing:
    """One lane's memory."""

    layout: RingLayout
    fd: int


@dataclass(slots=True)
class _Lingering:
    """Memory of a lane that was left.

    Attributes:
        nbytes: Of its ring.
        readers: Rank -> position below which it may still read.
    """

    nbytes: int
    readers: dict[int, int] = field(default_factory=dict)


class Rings:
    """All of them.

    Args:
        budget_bytes: The daemon's limit for rings together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.held: dict[int, LaneRing] = {}
        self._lingering: dict[int, _Lingering] = {}  # dropped lanes whose memory clients still read
        self._to_touch: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._toucher = threading.Thread(target=self._touch, name="prefault", daemon=True)
        self._toucher.start()

    @property
    def held_bytes(self) -> int:
        """Bytes of all rings; pages that nobody touched yet count, and rings that were left but are still read."""
        lingering = sum(x.nbytes for lane, x in self._lingering.items() if lane not in self.held)
        return lingering + sum(ring.layout.nbytes for ring in self.held.values())

    def create(
        self,
        lane: int,
        fields: tuple[Field, ...],
        rows: tuple[int, int],
        allow: Callable[[int], None] = lambda _nbytes: None,
    ) -> LaneRing:
        """A ring for `lane`, of `rows` = (wanted, needed) rows: as many as fit.

        Args:
            lane: Its number.
            fields: Of a row.
            rows: (wanted, needed).
            allow: Raises `MemoryShort` for a size that its user may not have.

        Raises:
            MemoryShort: Not even the needed rows fit.
        """
        wanted, needed = rows
        layout = RingLayout(wanted, fields)
        try:
            allow(layout.nbytes)
            check_fits(layout.nbytes, self.held_bytes, self.budget_bytes)
        except MemoryShort:
            layout = RingLayout(needed, fields)
            allow(layout.nbytes)
            check_fits(layout.nbytes, self.held_bytes, self.budget_bytes)
        ring = LaneRing(layout, create_segment(f"prepserver-lane-{lane}", layout.nbytes))
        self.held[lane] = ring
        self._to_touch.put((os.dup(ring.fd), layout.nbytes))
        return ring

    def drop(self, lane: int) -> None:
        """Gives up a lane's ring; the memory goes when the last client has unmapped it."""
        os.close(self.held.pop(lane).fd)

    def linger(self, lane: int, cursor: int, until: int) -> None:
        """A rank leaves `lane` and still reads its rows below position `until`."""
        kept = self._lingering.setdefault(lane, _Lingering(self.held[lane].layout.nbytes))
        kept.readers[cursor] = until

    def let_go(self, cursor: int, upto: int | None) -> None:
        """A rank has released the rows below `upto`, or (None) is gone."""
        if not self._lingering:
            return
        for lane, kept in list(self._lingering.items()):
            if cursor in kept.readers and (upto is None or upto >= kept.readers[cursor]):
                del kept.readers[cursor]
                if not kept.readers:
                    del self._lingering[lane]

    def close(self) -> None:
        """Drops all."""
        for lane in list(self.held):
            self.drop(lane)
        self._to_touch.put(None)
        self._toucher.join(timeout=5)

    def _touch(self) -> None:
        # In a thread of its own: a GiB takes a quarter of a second and more, and the poll loop must not
        # wait for it. Workers may write meanwhile; populating does not change what a page holds.
        while (work := self._to_touch.get()) is not None:
            fd, nbytes = work
            with contextlib.suppress(SegmentError):  # no address space: pages come at first touch then
                Mapping(fd, 0, nbytes, writable=True).populate(write=True)
            os.close(fd)
