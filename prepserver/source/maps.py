"""Maps from the indices of a composed source to samples of its sources: pure, and computed for any index by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.composed import Blocks, Pattern
from prepserver.source.container import NumberRows

I64 = npt.NDArray[np.int64]

Place = tuple[int, int]  # (number of the source, index in it)

_SMALL_STEP = 256  # the numbers between cost less to read than another system call


class IndexMap(ABC):
    """Says where the samples of a composed source come from."""

    count: int  # of the samples

    @abstractmethod
    def at(self, index: int) -> Place:
        """Return where the sample at an index in range(self.count) comes from."""

    def places(self, indices: I64) -> tuple[I64, I64]:
        """Return `at` of many indices: the sources, and the indices in them."""
        sources, places = zip(*map(self.at, indices.tolist()), strict=True)
        return np.array(sources), np.array(places)


class Picked(IndexMap):
    """Chosen samples of one source; `rows` holds their indices, each of this `dtype`."""

    def __init__(self, rows: NumberRows, dtype: str) -> None:
        self._rows, self._dtype, self.count = rows, dtype, len(rows)

    def at(self, index: int) -> Place:
        """As `IndexMap.at`; one system call."""
        return 0, self._rows[index][0]

    def places(self, indices: I64) -> tuple[I64, I64]:
        """As `IndexMap.places`; one system call for each run of them that rises in small steps, as in windows."""
        steps = np.diff(indices)
        (cuts,) = np.nonzero((steps < 0) | (steps > _SMALL_STEP))
        firsts, ends = np.append(0, cuts + 1), np.append(cuts + 1, len(indices))
        starts, stops = indices[firsts], indices[ends - 1] + 1
        runs = zip(starts.tolist(), stops.tolist(), strict=True)
        found = np.concatenate([self._rows.column(*run, self._dtype, 0) for run in runs])
        shifts = np.cumsum(stops - starts) - stops  # from an index to where it was found
        return np.zeros_like(indices), found[indices + np.repeat(shifts, ends - firsts)].astype(np.int64)


class Woven(IndexMap):
    """Sources that take turns in a pattern; `lengths` are their numbers of samples."""

    def __init__(self, pattern: Pattern, lengths: Sequence[int]) -> None:
        turns = Counter(pattern.sources)
        before = [pattern.start] * len(lengths)
        self._slots: list[tuple[int, int, int]] = []  # source, its turns in a period, its sample in the first period
        for source in pattern.sources:
            self._slots.append((source, turns[source], before[source]))
            before[source] += 1
        self._lengths = lengths
        periods = max(-(-length // turns[source]) for source, length in enumerate(lengths))
        self.count = periods * len(self._slots) if pattern.length is None else pattern.length

    def at(self, index: int) -> Place:
        period, slot = divmod(index, len(self._slots))
        source, turns, before = self._slots[slot]
        return source, (period * turns + before) % self._lengths[source]

    def places(self, indices: I64) -> tuple[I64, I64]:
        period, slot = np.divmod(indices, len(self._slots))
        source, turns, before = np.array(self._slots)[slot].T
        return source, (period * turns + before) % np.array(self._lengths)[source]


class _Stretch(NamedTuple):
    """A run of indices in which the same sources take turns, in whole blocks."""

    start: int  # the first index
    firsts: list[Place]  # the first sample here of each source
    block: int  # samples of a block


class Interleaved(IndexMap):
    """Sources of these `lengths`, block by block in turn: a table of stretches, a few for each source."""

    def __init__(self, blocks: Blocks, lengths: Sequence[int]) -> None:
        cycle_length, block_length = blocks
        self._stretches: list[_Stretch] = []
        self._starts: list[int] = []
        self.count = opened = 0
        slots: list[Place | None] = [None] * min(cycle_length, len(lengths))
        while self.count < sum(lengths):
            turns = [slot for slot in slots if slot is not None]
            if len(turns) == len(slots) or opened == len(lengths):
                rounds = min((lengths[source] - done) // block_length for source, done in turns)
                self._add(turns, block_length, rounds)
                slots = [slot and (slot[0], slot[1] + rounds * block_length) for slot in slots]
            # A round in which sources begin or end. As in tf.data, the slot of a source that has ended is filled again
            # at its next turn, and a source whose last block was whole ends at the turn after that block.
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
            self._stretches.append(_Stretch(self.count, turns, block))
            self._starts.append(self.count)
            self.count += len(turns) * block * rounds

    def at(self, index: int) -> Place:
        """As `IndexMap.at`; a binary search."""
        stretch = self._stretches[bisect_right(self._starts, index) - 1]
        turn, offset = divmod(index - stretch.start, len(stretch.firsts) * stretch.block)
        slot, inside = divmod(offset, stretch.block)
        source, first = stretch.firsts[slot]
        return source, first + turn * stretch.block + inside

    def places(self, indices: I64) -> tuple[I64, I64]:
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
