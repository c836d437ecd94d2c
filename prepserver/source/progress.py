"""Reports the progress of a scan, at next to no cost."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

_begins: Callable[[str], None] | None = None

T = TypeVar("T", bound=str | bytes)
R = TypeVar("R")

_PERIOD_S = 0.1


def one_by_one(begins: Callable[[str], None]) -> None:
    """Have this process list files one by one, and name each before it begins: one of them may end the process."""
    global _begins  # an indexer lists one source, and ends
    _begins = begins


class Progress:
    """Passes on a growing count of files, at most ten times a second, and once the final count.

    An exception from `report` cancels the scan.
    """

    def __init__(self, report: Callable[[int], None]) -> None:
        self.finished = report
        self._due_s = time.monotonic() + _PERIOD_S

    def found(self, count: int) -> None:
        """Report the count if it is time."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + _PERIOD_S
            self.finished(count)

    def over(
        self, work: Callable[[T], R], items: Iterable[T], at_once: int, samples: Callable[[], int], remote: bool
    ) -> list[R]:
        """Return what `work` returns for each item, the name of a file or folder; the first error ends the scan.

        The work runs in `at_once` threads, because it waits for storage more than it computes. Meanwhile the number of
        `samples` so far is reported. With local files nothing is reported while no item ends and no sample is found,
        because a disk may hang without end, and the daemon ends a scan that is silent. `remote` reads have a time limit
        each, and one of them may take long.
        """
        if _begins is None:
            return self._over(work, items, at_once, samples, remote)
        done: list[R] = []
        for item in items:
            _begins(os.fsdecode(item))
            done += self._over(work, [item], 1, samples, remote)
        return done

    def _over(
        self, work: Callable[[T], R], items: Iterable[T], at_once: int, samples: Callable[[], int], remote: bool
    ) -> list[R]:
        with ThreadPoolExecutor(at_once) as threads:
            futures = deque(threads.submit(work, item) for item in items)
            done: list[R] = []
            before = 0, 0
            try:
                while futures:
                    if futures[0].done() or wait([futures[0]], _PERIOD_S).done:
                        done.append(futures.popleft().result())
                    now = len(done), samples()
                    if remote or now != before:
                        self.found(now[1])
                    before = now
            except BaseException:
                threads.shutdown(wait=True, cancel_futures=True)
                raise
        return done
