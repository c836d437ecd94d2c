"""The rings that the daemon makes: within its budget, prefaulted by a thread, counted until no process holds them."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from prepserver.memory.budget import check_fits
from prepserver.memory.errors import MemoryShort, SegmentError
from prepserver.memory.mapping import MemoryMap
from prepserver.memory.segment import create_segment, is_open_elsewhere, open_again
from prepserver.protocol.layout import Field, RingLayout

MOST_LEFT = 64
"""Most dropped rings of a user that processes may still hold: each costs the daemon a descriptor, whatever its size."""


@dataclass(slots=True)
class LaneRing:
    """One lane's memory."""

    owner: int  # uid of its user
    layout: RingLayout  # its fields and rows
    fd: int  # the descriptor that workers and clients get
    watch_fd: int  # a second opening of it: shows whether other processes still hold the ring (`is_open_elsewhere`)


class Rings:
    """All rings; `budget_bytes` is the daemon's limit for all of them together."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.held: dict[int, LaneRing] = {}
        self._left: list[LaneRing] = []  # rings of dropped lanes, which other processes may still hold
        self._to_touch: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._toucher = threading.Thread(target=self._touch, name="prefault", daemon=True)
        self._toucher.start()

    @property
    def held_bytes(self) -> int:
        """Bytes of all rings, including untouched pages and dropped rings that processes still hold."""
        return sum(ring.layout.nbytes for ring in self._all())

    def bytes_of(self, uid: int) -> int:
        """Bytes of the rings of one user, counted in the same way."""
        return sum(ring.layout.nbytes for ring in self._all() if ring.owner == uid)

    @property
    def are_leaving(self) -> bool:
        """Whether dropped rings are counted, or were until this call: their memory is free now or soon."""
        counted = bool(self._left)
        self.forget_free()
        return counted

    def create(
        self, lane: int, owner: int, fields: tuple[Field, ...], rows: tuple[int, int],
        allow: Callable[[int], None] = lambda _nbytes: None,
    ) -> LaneRing:  # fmt: skip
        """Makes a ring for `lane`. `rows` are the wanted number of rows, and the needed one if the wanted do not fit.

        `allow` raises `MemoryShort` for a size above the user's limit.

        Raises:
            MemoryShort: Not even the needed rows fit, or this user has too many dropped rings.
        """
        wanted, needed = rows
        layout = RingLayout(wanted, fields)
        self.forget_free()
        if sum(ring.owner == owner for ring in self._left) >= MOST_LEFT:
            limit = (
                f"processes of uid {owner} still hold {MOST_LEFT} rings of jobs that have ended, the limit of a user "
                "(end these processes, or delete their tensors)"
            )
            raise MemoryShort(layout.nbytes, 0, limit)

        def check() -> None:
            allow(layout.nbytes)
            check_fits(layout.nbytes, self.held_bytes, self.budget_bytes)

        try:
            check()
        except MemoryShort:
            layout = RingLayout(needed, fields)
            check()
        with contextlib.ExitStack() as on_error:
            made = create_segment(f"prepserver-lane-{lane}", layout.nbytes)
            try:
                fds = []
                for _ in range(3):  # to watch it, to give away, and for the thread
                    fds.append(open_again(made))
                    on_error.callback(os.close, fds[-1])
            finally:
                os.close(made)
            on_error.pop_all()
        ring = self.held[lane] = LaneRing(owner, layout, fds[1], fds[0])
        self._to_touch.put((fds[2], layout.nbytes))
        return ring

    def drop(self, lane: int) -> None:
        """Drops a lane's ring; its bytes count until no process holds it."""
        ring = self.held.pop(lane)
        os.close(ring.fd)
        self._left.append(ring)

    def forget_free(self) -> None:
        """Closes dropped rings that no other process holds; call it several times a second."""
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
        # In a thread, because a GiB takes a quarter of a second or more. Workers may write at the same time, because
        # populating a page does not change its contents.
        while (work := self._to_touch.get()) is not None:
            fd, nbytes = work
            with contextlib.suppress(SegmentError):  # no address space is left: the first write faults the pages in
                MemoryMap(fd, 0, nbytes, writable=True).populate()
            os.close(fd)
