"""Reports how far a scan is, at next to no cost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

_begins: Callable[[str], None] | None = None

T = TypeVar("T")
R = TypeVar("R")

_PERIOD_S = 0.1


def one_by_one(begins: Callable[[str], None]) -> None:
    """Have this process list files one by one, and tell of each before it begins: one of them may end the process."""
    global _begins  # an indexer lists one source, and ends
    _begins = begins


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

    def over(self, work: Callable[[T], R], items: Iterable[T], at_once: int, samples: Callable[[], int]) -> list[R]:
        """Do work in threads, because it waits for storage more than it computes, and report meanwhile.

        Args:
            work: Called with each item, in any order; an error from it ends the scan.
            items: What to work on.
            at_once: Number of threads.
            samples: The number of files found so far.

        Returns:
            What `work` returned, in the order of the items.
        """
        if _begins is None:
            return self._over(work, items, at_once, samples)
        done: list[R] = []
        for item in items:
            _begins(os.fsdecode(item) if isinstance(item, str | bytes) else "")
            done += self._over(work, [item], 1, samples)
        return done

    def _over(self, work: Callable[[T], R], items: Iterable[T], at_once: int, samples: Callable[[], int]) -> list[R]:
        with ThreadPoolExecutor(at_once) as threads:
            futures = [threads.submit(work, item) for item in items]
            try:
                left = set(futures)
                while left:
                    done, left = wait(left, _PERIOD_S)
                    for future in done:
                        future.result()
                    self.found(samples())
            except BaseException:
                threads.shutdown(wait=True, cancel_futures=True)
                raise
        return [future.result() for future in futures]
