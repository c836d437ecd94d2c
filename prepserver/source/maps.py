"""Maps of the indices of a composed source: pure, and computed for any index without those before it.

A map gives for each index the number of a source and an index there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from prepserver.source.container import Rows

I64 = npt.NDArray[np.int64]

Place = tuple[int, int]
"""(number of the source, index in it)."""


class IndexMap(ABC):
    """Where the samples of a composed source come from."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def at(self, index: int) -> Place:
        """Return where the sample at an index in range(len(self)) comes from."""

    def places(self, indices: I64) -> tuple[I64, I64]:
        """Return `at` of many indices: the sources, and the indices in them."""
        sources, places = zip(*map(self.at, indices.tolist()), strict=True)
        return np.array(sources), np.array(places)


class Window(IndexMap):
    """Consecutive samples of one source; after its last sample, the first follows again.

    Args:
        start: The first sample.
        count: Number of samples.
        length: Samples of the source.
    """

    def __init__(self, start: int, count: int, length: int) -> None:
        self._start, self._count, self._length = start, count, length

    def __len__(self) -> int:
        return self._count

    def at(self, index: int) -> Place:
        """As `IndexMap.at`."""
        return 0, (self._start + index) % self._length

    def places(self, indices: I64) -> tuple[I64, I64]:
        """As `IndexMap.places`."""
        return np.zeros_like(indices), (self._start + indices) % self._length


class Picked(IndexMap):
    """Chosen samples of one source.

    Args:
        rows: The index of each.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, index: int) -> Place:
        """As `IndexMap.at`; one system call."""
        return 0, self._rows[index][0]


class Woven(IndexMap):
    """Sources that take turns in a pattern, each from its start again when it ends, until each has ended once.

    Args:
        pattern: The source of each place of a period.
        lengths: Samples of each source.
    """

    def __init__(self, pattern: Sequence[int], lengths: Sequence[int]) -> None:
        turns = [pattern.count(source) for source in range(len(lengths))]
        before = [0] * len(lengths)
        self._slots: list[tuple[int, int, int]] = []  # source, its turns in a period, those before this one
        for source in pattern:
            self._slots.append((source, turns[source], before[source]))
            before[source] += 1
        self._lengths = lengths
        self._periods = max(-(-length // turn) for length, turn in zip(lengths, turns, strict=True))

    def __len__(self) -> int:
        return self._periods * len(self._slots)

    def at(self, index: int) -> Place:
        """As `IndexMap.at`."""
        period, slot = divmod(index, len(self._slots))
        source, turns, before = self._slots[slot]
        return source, (period * turns + before) % self._lengths[source]

    def places(self, indices: I64) -> tuple[I64, I64]:
        """As `IndexMap.places`."""
        period, slot = np.divmod(indices, len(self._slots))
        source, turns, before = np.array(self._slots)[slot].T
        return source, (period * turns + before) % np.array(self._lengths)[source]


class _Stretch(NamedTuple):
    """Indices in which the same sources take turns, in whole blocks.

    Attributes:
        start: The first index.
        firsts: Each source's number and the index of its first sample here.
        block: Samples of a block.
    """

    start: int
    firsts: list[Place]
    block: int


class Interleaved(IndexMap):
    """Blocks of several sources in turn, each sample once; a table of stretches, a few for each source.

    Args:
        lengths: Samples of each source.
        cycle_length: Sources that take turns.
        block_length: Samples of a block.
    """

    def __init__(self, lengths: Sequence[int], cycle_length: int, block_length: int) -> None:
        self._stretches: list[_Stretch] = []
        self._starts: list[int] = []
        self._count = opened = 0
        slots: list[Place | None] = [None] * min(cycle_length, len(lengths))
        while self._count < sum(lengths):
            turns = [slot for slot in slots if slot is not None]
            if len(turns) == len(slots) or opened == len(lengths):
                rounds = min((lengths[source] - done) // block_length for source, done in turns)
                self._add(turns, block_length, rounds)
                slots = [slot and (slot[0], slot[1] + rounds * block_length) for slot in slots]
            # A round in which sources begin or end. As in tf.data, one that ends makes room at its slot's next turn,
            # and one whose last block was whole ends at the turn after that block.
            for number, slot in enumerate(slots):
                if slot is None and opened == len(lengths):
                    continue
                if slot is None:
                    slot, opened = (opened, 0), opened + 1
                source, done = slot
                taken = min(block_length, lengths[source] - done)
                self._add([slot], taken, min(taken, 1))
                slots[number] = (source, done + taken) if taken == block_length else None

    def _add(self, turns: list[Place], block: int, rounds: int) -> None:
        if rounds:
            self._stretches.append(_Stretch(self._count, turns, block))
            self._starts.append(self._count)
            self._count += len(turns) * block * rounds

    def __len__(self) -> int:
        return self._count

    def at(self, index: int) -> Place:
        """As `IndexMap.at`; a binary search."""
        stretch = self._stretches[bisect_right(self._starts, index) - 1]
        turn, offset = divmod(index - stretch.start, len(stretch.firsts) * stretch.block)
        slot, inside = divmod(offset, stretch.block)
        source, first = stretch.firsts[slot]
        return source, first + turn * stretch.block + inside

    def places(self, indices: I64) -> tuple[I64, I64]:
        """As `IndexMap.places`."""
        sources, places = np.empty_like(indices), np.empty_like(indices)
        which = np.searchsorted(self._starts, indices, "right") - 1
        for number in set(which.tolist()):
            start, firsts, block = self._stretches[number]
            here = which == number
            turn, offset = np.divmod(indices[here] - start, len(firsts) * block)
            slot, inside = np.divmod(offset, block)
            sources[here], first = np.array(firsts)[slot].T
            places[here] = first + turn * block + inside
        return sources, places
