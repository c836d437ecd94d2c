"""Loaders that repeat by themselves and never end, cut into epochs of a given number of batches."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator
from typing import Any


class Endless:
    """Epochs of one endless iterator.

    Args:
        batches: The endless iterable; its iterator is made once, at the first epoch.
        per_epoch: Batches in an epoch.
    """

    def __init__(self, batches: Iterable[Any], per_epoch: int) -> None:
        self._batches = batches
        self._running: Iterator[Any] | None = None
        self._per_epoch = per_epoch

    def __iter__(self) -> Iterator[Any]:
        if self._running is None:
            self._running = iter(self._batches)
        return itertools.islice(self._running, self._per_epoch)

    def close(self) -> None:
        """Ends a generator; iterators of other kinds end with the process."""
        if isinstance(self._running, Generator):
            self._running.close()
