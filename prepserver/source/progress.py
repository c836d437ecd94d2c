"""Reports how far a scan is, at next to no cost."""

from __future__ import annotations

import time
from collections.abc import Callable

_PERIOD_S = 0.1


class Progress:
    """Passes a growing count on, at most ten times a second.

    Args:
        report: Called with the number of files found so far, and once with the final number. An exception from it ends
            the scan: that cancels one.
        clock: Seconds that never go back.
    """

    def __init__(self, report: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.finished = report
        self._clock = clock
        self._due_s = clock() + _PERIOD_S

    def found(self, count: int) -> None:
        """Report the count if it is time."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + _PERIOD_S
            self.finished(count)
