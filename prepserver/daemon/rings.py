"""The rings that the daemon makes: within its budget, counted until no process holds them, brought in by a thread.

A page of shared memory exists once somebody has touched it. Workers touch the pages that they fill. The thread brings
in the others, because a client's CUDA driver, which page-locks a whole ring, does so slowly, and meanwhile keeps every
process on the machine from starting CUDA. It leaves a new ring to the workers for a moment: the first batch waits for
them, and on a machine with few cores the thread would take one of them away.
"""

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

_STEPS_OF_WORKERS = 3  # steps in which only workers touch a ring: half a second, since the server takes five a second


@dataclass(slots=True)
class LaneRing:
    """One lane's memory."""

    owner: int  # uid of its user
    layout: RingLayout  # its fields and rows
    fd: int  # the descriptor that workers and clients get
    watch_fd: int  # a second opening of it: shows whether other processes still hold the ring (`is_open_elsewhere`)
    steps: int = 0  # how many there have been since it was made


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

    @property
    def absent_bytes(self) -> int:
        """Bytes of pages that nobody has touched yet: the machine counts them as free."""
        return sum(max(0, each.layout.nbytes - 512 * os.fstat(each.watch_fd).st_blocks) for each in self._all())

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
        """Makes a ring for `lane`. `rows` are the wanted rows, whose number is halved until they fit, and the needed.

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
            check_fits(layout.nbytes, self.held_bytes, self.budget_bytes, self.absent_bytes)

        while True:
            try:
                check()
                break
            except MemoryShort:
                if layout.rows <= needed:
                    raise
                layout = RingLayout(max(needed, layout.rows // 2), fields)
        with contextlib.ExitStack() as on_error:
            made = create_segment(f"prepserver-lane-{lane}", layout.nbytes)
            try:
                fds = []
                for _ in range(2):  # to watch it, and to give away
                    fds.append(open_again(made))
                    on_error.callback(os.close, fds[-1])
            finally:
                os.close(made)
            on_error.pop_all()
        self.held[lane] = LaneRing(owner, layout, fds[1], fds[0])
        return self.held[lane]

    def drop(self, lane: int) -> None:
        """Drops a lane's ring; its bytes count until no process holds it."""
        ring = self.held.pop(lane)
        os.close(ring.fd)
        self._left.append(ring)

    def step(self) -> None:
        """Closes dropped rings that no other process holds, and brings in new ones; call it several times a second."""
        self.forget_free()
        for ring in self.held.values():
            ring.steps += 1
            if ring.steps == _STEPS_OF_WORKERS:
                try:
                    self._to_touch.put((open_again(ring.fd), ring.layout.nbytes))
                except OSError:  # no descriptor is left: perhaps at the next step
                    ring.steps -= 1

    def forget_free(self) -> None:
        """Closes dropped rings that no other process holds."""
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
