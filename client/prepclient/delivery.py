"""Decides when memory may be overwritten while copies are asynchronous. Pure: no torch.

Only this module protects two kinds of memory:

- *Host rows* in the shared ring. The daemon refills a row as soon as it is released, and torch does not track memory
  that it did not allocate. So a row is free when the event after its copy *has completed*, not when the copy is queued.
- *Device slots*, a ring of ``depth + 1`` buffers. A copy into a slot must follow the consumer's last read of it on the
  GPU, without blocking the host: the copy stream waits for an event that is recorded on the consumer's stream once the
  reads are queued (the pattern of FFCV's epoch iterator).

It uses streams and events only through :class:`Events`, so the same code runs with CUDA and with a fake device that
completes work in any legal order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

E = TypeVar("E")


class Events(Protocol[E]):
    """Two streams of one device: *copies*, on which batches are copied, and *consumer*, the user's current stream.

    Only :meth:`wait` and :meth:`synchronize` block.
    """

    def mark_copies(self) -> E:
        """An event that completes when all copies queued so far have completed."""

    def mark_consumer(self) -> E:
        """An event that completes when all the user's work queued so far has completed."""

    def copies_wait(self, event: E) -> None:
        """Copies queued from now on start after `event`."""

    def consumer_waits(self, event: E) -> None:
        """The user's work queued from now on starts after `event`."""

    def done(self, event: E) -> bool:
        """Whether `event` has completed."""

    def wait(self, event: E) -> None:
        """Blocks the calling thread until `event` has completed."""

    def elapsed_ns(self, first: E, second: E) -> int:
        """Time from `first` to `second`, both completed; negative if `second` completed first."""

    def synchronize(self) -> None:
        """Blocks the calling thread until every copy queued so far has completed."""


@dataclass(slots=True)
class _Slot(Generic[E]):
    """One device buffer with its staging: the last copy into it and the last read of it."""

    index: int
    copied: E | None = None
    consumed: E | None = None


@dataclass(frozen=True, slots=True)
class _Copy(Generic[E]):
    """A batch on its way: the caller's key, the slot, and the event after the copy."""

    key: int
    slot: _Slot[E]
    copied: E


class Delivery(Generic[E]):
    """Keeps track of the slot to fill next, the batch to hand out next, and the host rows that are free.

    One step of the consumer is ``poll``, ``advance``, ``submit`` while there is `room`, ``take``. One thread at a time
    may call it. At most `depth` batches are submitted ahead of the consumer's. The client's depth is 2: one batch is
    ready while another is copied, so a late announcement does not delay the loop.
    """

    def __init__(self, events: Events[E], depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth = {depth}: at least 1")
        self._events = events
        self._free: deque[_Slot[E]] = deque(_Slot(index) for index in range(depth + 1))
        self._waiting: deque[_Copy[E]] = deque()  # submitted and not yet handed out, oldest first
        self._travelling: deque[_Copy[E]] = deque()  # whose host rows may still be read, oldest first
        self._held: _Slot[E] | None = None
        self._held_is_read = False
        self._asked: E | None = None
        self._arrivals: deque[tuple[E, E, int]] = deque()  # of batches taken: (asked, copied, waited_ns)
        self._closed = False

    @property
    def slots(self) -> int:
        """Number of device buffers, ``depth + 1``."""
        return len(self._free) + len(self._waiting) + (self._held is not None)

    @property
    def room(self) -> int:
        """How many batches may be submitted now."""
        return 0 if self._closed else len(self._free)

    @property
    def waiting(self) -> int:
        """How many batches are submitted and not handed out."""
        return len(self._waiting)

    @property
    def travelling(self) -> int:
        """How many batches still have host rows that may be read; while there are any, keep polling."""
        return len(self._travelling)

    def submit(self, key: int, issue: Callable[[int], None]) -> None:
        """Starts the copy of one batch, by `issue`, which is given the number of a slot and queues the copies into it.

        It first waits for the slot's last copy, so that `issue` may write the slot's host staging. This blocks only if
        the host runs more than `depth` steps ahead of the device. :meth:`poll` and :meth:`take` return the `key`.

        Raises:
            RuntimeError: No room, or closed. If `issue` itself raises, part of a copy may be under way: the batch is
                never reported free, its slot is lost, and only :meth:`close` may be called.
        """
        if not self.room:
            raise RuntimeError("closed" if self._closed else f"all {self.slots} device buffers are in use")
        slot = self._free.popleft()
        if slot.copied is not None and not self._events.done(slot.copied):
            self._events.wait(slot.copied)
        if slot.consumed is not None:
            self._events.copies_wait(slot.consumed)
        issue(slot.index)
        slot.copied = self._events.mark_copies()
        copy = _Copy(key, slot, slot.copied)
        self._waiting.append(copy)
        self._travelling.append(copy)

    def take(self, waited_ns: int = 0) -> tuple[int, int]:
        """Hands out the oldest batch: work that the consumer queues from now on runs after its copy.

        Returns the batch's key and its slot, which stays untouched until :meth:`advance`. `waited_ns` says for how long
        the device was idle because the batch's rows were missing; see `late_ns`.

        Raises:
            RuntimeError: None was submitted, or closed.
        """
        self.advance()
        if not self._waiting:
            raise RuntimeError("closed" if self._closed else "no batch was submitted")
        copy = self._waiting.popleft()
        self._events.consumer_waits(copy.copied)
        self._held, self._held_is_read = copy.slot, False
        if self._asked is not None:
            self._arrivals.append((self._asked, copy.copied, waited_ns))
        return copy.key, copy.slot.index

    def read(self) -> None:
        """Notes that the last read of the consumer's slot is queued on the consumer's stream."""
        if self._held is not None and not self._held_is_read:
            self._held.consumed = self._events.mark_consumer()
            self._held_is_read = True

    def advance(self) -> None:
        """Frees the consumer's slot; it is filled again once its reads are done."""
        self.read()
        if self._held is not None:
            self._free.append(self._held)
            self._held = None

    def ask(self) -> None:
        """As :meth:`advance`, and marks the end of the work that the consumer has queued so far."""
        self.advance()
        self._asked = self._events.mark_consumer()

    @property
    def caught_up(self) -> bool:
        """Whether the device has done all work that was queued before the last :meth:`ask`."""
        return self._asked is None or self._events.done(self._asked)

    def late_ns(self) -> int:
        """For how long, since the last call, the device was idle because a batch was still being copied.

        A batch counts once its copy has completed: the time from the end of the work before `ask` to the end of the
        copy, less the time for which its rows were missing.
        """
        total_ns = 0
        while self._arrivals and all(self._events.done(event) for event in self._arrivals[0][:2]):
            asked, copied, waited_ns = self._arrivals.popleft()
            total_ns += max(0, self._events.elapsed_ns(asked, copied) - waited_ns)
        return total_ns

    def poll(self) -> list[int]:
        """Keys of the batches whose host rows have become free since the last call, oldest first."""
        freed: list[int] = []
        while self._travelling and self._events.done(self._travelling[0].copied):
            freed.append(self._travelling.popleft().key)
        return freed

    def drain(self) -> list[int]:
        """Waits until no copy reads host rows, so that their memory may be unlocked and unmapped.

        Batches that wait on the device for the consumer stay there. Returns the keys of the batches whose rows had not
        been reported free.
        """
        self._events.synchronize()
        freed = [copy.key for copy in self._travelling]
        self._travelling.clear()
        return freed

    def discard(self) -> None:
        """Forgets the batches that were not taken, when the consumer moves to another position.

        Their copies continue: :meth:`poll` still reports their host rows, and a new copy into a slot follows the old
        one on the same stream.
        """
        while self._waiting:
            self._free.append(self._waiting.popleft().slot)

    def close(self) -> list[int]:
        """Accepts no more batches, and drains as :meth:`drain` does. Idempotent.

        Later work on the copy stream waits for the consumer's reads, so the slots' memory may be reused there.
        """
        if self._closed:
            return []
        self._closed = True
        freed = self.drain()
        self.discard()
        self.advance()
        for slot in self._free:
            if slot.consumed is not None:
                self._events.copies_wait(slot.consumed)
        return freed
