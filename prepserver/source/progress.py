"""Telling how far a scan is, without the telling costing anything."""

from __future__ import annotations

import time
from collections.abc import Callable

_PERIOD_S = 0.1


class Progress:
    """Passes a growing count on, ten times a second at most."""

    def __init__(self, report: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Remember whom to tell.

        Args:
            report: Called with the number of files found so far, and once with the final number. What it
                raises ends the scan: the way to cancel one.
            clock: Seconds that never go back.
        """
        self._report = report
        self._clock = clock
        self._due_s = clock() + _PERIOD_S

    def found(self, count: int) -> None:
        """Say the count if it is time."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + _PERIOD_S
            self._report(count)

    def finished(self, count: int) -> None:
        """Say the final count."""
        self._report(count)
