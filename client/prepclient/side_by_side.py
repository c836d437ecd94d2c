"""Loops that one thread reads side by side, as with `zip`: what they wait for each other, and where each began."""

from __future__ import annotations

import logging
import threading
import weakref

from prepclient.attachment import Attachment

log = logging.getLogger("prepclient")

_SIDE_BY_SIDE = 3  # turns that two loops take from each other before they count as read side by side


class _Thread(threading.local):
    waits_ns = 0  # how long it has waited for rows
    latest: weakref.ref[SideBySide] | None = None  # whose step was the last one


_thread = _Thread()


class SideBySide:
    """One loop among those of its thread."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._thread = 0  # which got the last batch
        self._left_at_ns = 0  # how long that thread had waited by then
        self._turns = 0  # how often this loop took its turn from another one; no longer counted at the end

    def others_waits_ns(self) -> int:
        """How long the thread has waited for rows of other loops since `leave`: that is no computing."""
        return max(0, _thread.waits_ns - self._left_at_ns) if threading.get_ident() == self._thread else 0

    def waited(self, wait_ns: int) -> None:
        """Counts a wait for rows of this loop."""
        _thread.waits_ns += max(0, wait_ns)
        self._compare_start()

    def leave(self) -> None:
        """The loop has got a batch and goes on."""
        self._thread, self._left_at_ns = threading.get_ident(), _thread.waits_ns

    def _compare_start(self) -> None:
        """Warns once if another loop of the thread would have the same samples, but began elsewhere."""
        other = _thread.latest() if _thread.latest is not None else None
        _thread.latest = weakref.ref(self)
        if self._turns >= _SIDE_BY_SIDE:
            return
        if other is None or other is self:
            self._turns = 0  # an evaluation between epochs takes single turns
            return
        self._turns += 1
        mine, theirs = self._attachment, other._attachment
        if self._turns == _SIDE_BY_SIDE and mine.began != theirs.began and mine.spec.has_order_of(theirs.spec):
            other._turns = _SIDE_BY_SIDE  # it need not say so, too
            log.warning(
                "two clients of %s are read side by side and began at different positions, %d and %d: their batches "
                "hold different samples. With joining=Joining(start='first') both begin with the first sample",
                mine.spec.source.location, mine.began, theirs.began,
            )  # fmt: skip
