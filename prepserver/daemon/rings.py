"""The rings that the daemon makes: within its budget, prefaulted by a thread, counted until nobody has them."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from prepserver.memory.budget import check_fits
from prepserver.memory.errors import MemoryShort, SegmentError
from prepserver.memory.mapping import Mapping
from prepserver.memory.segment import create_segment, is_open_elsewhere, open_again
from prepserver.protocol.layout import Field, RingLayout

MOST_LEFT = 64
"""Rings of one user that were dropped and not let go of: each costs the daemon a descriptor, however small it is."""


@dataclass(slots=True)
class LaneRing:
    """One lane's memory.

    Attributes:
        owner: uid of the user for whom it was made.
        layout: What lies where.
        fd: What workers and clients are given.
        watch_fd: Another opening of it, which tells whether that one is still in use.
    """

    owner: int
    layout: RingLayout
    fd: int
    watch_fd: int


class Rings:
    """All of them.

    Args:
        budget_bytes: The daemon's limit for rings together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.held: dict[int, LaneRing] = {}
        self._left: list[LaneRing] = []  # of dropped lanes, whose memory somebody may still have
        self._to_touch: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._toucher = threading.Thread(target=self._touch, name="prefault", daemon=True)
        self._toucher.start()

    @property
    def held_bytes(self) -> int:
        """Bytes of all rings; pages that nobody touched yet count, and rings that were dropped but not let go of."""
        return sum(ring.layout.nbytes for ring in self._all())

    def bytes_of(self, uid: int) -> int:
        """The same for the rings that were made for one user."""
        return sum(ring.layout.nbytes for ring in self._all() if ring.owner == uid)

    @property
    def are_leaving(self) -> bool:
        """Whether a dropped ring is still in somebody's hands, and its memory may soon come back."""
        self.forget_free()
        return bool(self._left)

    def create(
        self,
        lane: int,
        owner: int,
        fields: tuple[Field, ...],
        rows: tuple[int, int],
        allow: Callable[[int], None] = lambda _nbytes: None,
    ) -> LaneRing:
        """A ring for `lane`, of `rows` = (wanted, needed) rows: as many as fit.

        Args:
            lane: Its number.
            owner: uid of its user.
            fields: Of a row.
            rows: (wanted, needed).
            allow: Raises `MemoryShort` for a size that its user may not have.

        Raises:
            MemoryShort: Not even the needed rows fit, or this user has too many dropped rings.
        """
        wanted, needed = rows
        layout = RingLayout(wanted, fields)
        self.forget_free()
        if sum(ring.owner == owner for ring in self._left) >= MOST_LEFT:
            raise MemoryShort(
                layout.nbytes,
                0,
                f"processes of uid {owner} still have {MOST_LEFT} rings of jobs that are gone, the most that one user "
                "may (end these processes, or let their tensors go)",
            )
        try:
            allow(layout.nbytes)
            check_fits(layout.nbytes, self.held_bytes, self.budget_bytes)
        except MemoryShort:
            layout = RingLayout(needed, fields)
            allow(layout.nbytes)
            check_fits(layout.nbytes, self.held_bytes, self.budget_bytes)
        with contextlib.ExitStack() as on_error:
            made = create_segment(f"prepserver-lane-{lane}", layout.nbytes)
            try:
                fds = []
                for _ in range(3):  # ours, everybody's, and the thread's
                    fds.append(open_again(made))
                    on_error.callback(os.close, fds[-1])
            finally:
                os.close(made)
            on_error.pop_all()
        ring = self.held[lane] = LaneRing(owner, layout, fds[1], fds[0])
        self._to_touch.put((fds[2], layout.nbytes))
        return ring

    def drop(self, lane: int) -> None:
        """Gives up a lane's ring; it counts until all who were given it have let go."""
        ring = self.held.pop(lane)
        os.close(ring.fd)
        self._left.append(ring)

    def forget_free(self) -> None:
        """Lets go of dropped rings that nobody else has any more; call it several times a second."""
        still = [ring for ring in self._left if is_open_elsewhere(ring.watch_fd)]
        for ring in self._left:
            if ring not in still:
                os.close(ring.watch_fd)
        self._left = still

    def _all(self) -> list[LaneRing]:
        self.forget_free()
        return [*self.held.values(), *self._left]

    def close(self) -> None:
        """Drops all."""
        for lane in list(self.held):
            self.drop(lane)
        self._to_touch.put(None)
        self._toucher.join(timeout=5)
        for ring in self._left:
            os.close(ring.watch_fd)
        self._left = []

    def _touch(self) -> None:
        # In a thread of its own: a GiB takes a quarter of a second and more, and the poll loop must not
        # wait for it. Workers may write meanwhile; populating does not change what a page holds.
        while (work := self._to_touch.get()) is not None:
            fd, nbytes = work
            with contextlib.suppress(SegmentError):  # no address space: pages come at first touch then
                Mapping(fd, 0, nbytes, writable=True).populate(write=True)
            os.close(fd)
