"""The release discipline of asynchronous copies: what may be overwritten, and when. No torch in here.

Two kinds of memory are at stake, and nothing but this room protects them:

- *host rows* in the shared ring. The server refills a row as soon as it is told that the row is free, and
  torch keeps no record of memory that it did not allocate. So a row is free when the event behind its copy
  *has completed*, never when the copy was issued.
- *device slots*, a ring of ``depth + 1`` buffers. A copy into a slot must stay behind the consumer's last
  read of it, on the GPU, without the host waiting: the copy stream waits for an event that is recorded on
  the consumer's stream once the reads are queued (the pattern of FFCV's epoch iterator).

The room sees streams and events only through :class:`Events`, so that the same code runs against CUDA and
against a fake device that completes things in any legal order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

E = TypeVar("E")


class Events(Protocol[E]):
    """Two streams of one device: *copies*, on which batches travel, and *consumer*, the user's current one.

    All calls return at once except :meth:`wait` and :meth:`synchronize`.
    """

    def mark_copies(self) -> E:
        """An event that completes when all copies queued so far have."""

    def mark_consumer(self) -> E:
        """An event that completes when all the user's work queued so far has."""

    def copies_wait(self, event: E) -> None:
        """Copies queued from now on start after `event`."""

    def consumer_waits(self, event: E) -> None:
        """The user's work queued from now on starts after `event`."""

    def done(self, event: E) -> bool:
        """Whether `event` has completed."""

    def wait(self, event: E) -> None:
        """Blocks the calling thread until `event` has completed."""

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
    """A batch on its way: the caller's key for it, where it goes, the event behind it."""

    key: int
    slot: _Slot[E]
    copied: E


class Delivery(Generic[E]):
    """Which slot is filled next, which batch is handed out next, which host rows are free.

    One step of the consumer is ``poll``, ``advance``, ``submit`` while there is `room`, ``take``. All calls
    come from one thread.

    Args:
        events: The device's streams.
        depth: Batches that may travel or wait ahead of the one in the consumer's hands, at least 1. The
            default of the client is 2: one that arrives while one waits hides a late announcement.
    """

    def __init__(self, events: Events[E], depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth = {depth}: at least 1")
        self._events = events
        self._free: deque[_Slot[E]] = deque(_Slot(index) for index in range(depth + 1))
        self._waiting: deque[_Copy[E]] = deque()  # submitted and not yet handed out, oldest first
        self._travelling: deque[_Copy[E]] = deque()  # host rows still read, as far as we know, oldest first
        self._held: _Slot[E] | None = None
        self._held_is_read = False
        self._asked: E | None = None
        self._closed = False

    @property
    def slots(self) -> int:
        """Number of device buffers, ``depth + 1``."""
        return len(self._free) + len(self._waiting) + (self._held is not None)

    @property
    def room(self) -> int:
        """Batches that may be submitted now."""
        return 0 if self._closed else len(self._free)

    @property
    def waiting(self) -> int:
        """Batches that were submitted and not handed out."""
        return len(self._waiting)

    @property
    def travelling(self) -> int:
        """Batches whose host rows are not known to be free: while there are any, poll now and then."""
        return len(self._travelling)

    def submit(self, key: int, issue: Callable[[int], None]) -> None:
        """Starts the copy of one batch.

        `issue` may write the slot's host staging: the slot's last copy is waited for. That is a wait only
        for a host that runs more than `depth` steps ahead of the device.

        Args:
            key: The caller's name of the batch, handed back by :meth:`poll` and :meth:`take`.
            issue: Called with the slot's number; queues the copies into that slot.

        Raises:
            RuntimeError: No room, or closed. What `issue` raises comes through: then part of a copy may be
                under way, so the batch is never reported free and its slot is lost; only close is left.
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

    def take(self) -> tuple[int, int]:
        """Hands out the oldest batch: work that the consumer queues from now on finds it arrived.

        Returns:
            The batch's key and its slot, which stays untouched until :meth:`advance`.

        Raises:
            RuntimeError: None was submitted, or closed.
        """
        self.advance()
        if not self._waiting:
            raise RuntimeError("closed" if self._closed else "no batch was submitted")
        copy = self._waiting.popleft()
        self._events.consumer_waits(copy.copied)
        self._held, self._held_is_read = copy.slot, False
        return copy.key, copy.slot.index

    def read(self) -> None:
        """The last read of the slot handed out is queued on the consumer's stream (it was copied out)."""
        if self._held is not None and not self._held_is_read:
            self._held.consumed = self._events.mark_consumer()
            self._held_is_read = True

    def advance(self) -> None:
        """The consumer asks for its next batch: the slot handed out may be filled again, behind its reads."""
        self.read()
        if self._held is not None:
            self._free.append(self._held)
            self._held = None

    def ask(self) -> None:
        """As :meth:`advance`, and marks how much of the consumer's work was queued when it asked."""
        self.advance()
        self._asked = self._events.mark_consumer()

    @property
    def caught_up(self) -> bool:
        """Whether the device has done all the work that was queued before the last :meth:`ask`."""
        return self._asked is None or self._events.done(self._asked)

    def poll(self) -> list[int]:
        """Keys of the batches whose host rows are free since the last call, in the order of submission."""
        freed: list[int] = []
        while self._travelling and self._events.done(self._travelling[0].copied):
            freed.append(self._travelling.popleft().key)
        return freed

    def drain(self) -> list[int]:
        """Waits until no host row is read any more; then memory may be unlocked and unmapped.

        Batches that wait for the consumer stay: they are on the device.

        Returns:
            As :meth:`poll`: every batch that was still travelling.
        """
        self._events.synchronize()
        freed = [copy.key for copy in self._travelling]
        self._travelling.clear()
        return freed

    def discard(self) -> None:
        """Forgets the batches that nobody took (the consumer goes elsewhere in the stream).

        Their copies run on: :meth:`poll` still says when their host rows are free, and a new copy into a
        slot queues behind the old one on the same stream.
        """
        while self._waiting:
            self._free.append(self._waiting.popleft().slot)

    def close(self) -> list[int]:
        """Takes nothing any more and waits as :meth:`drain` does. Calling it again does nothing."""
        if self._closed:
            return []
        self._closed = True
        freed = self.drain()
        self.discard()
        return freed
