"""The orders: as stored, a new permutation in each pass, cyclic blocks; and shards or whole batches of one of these.

Position p belongs to pass p // n. A pass consists of segments (the whole pass, or its blocks), and one or two keyed
permutations shuffle each segment. An order computes an aligned window of a segment at a time and remembers the last
few. Chunks are asked for in sequence, so a call for 16 positions costs about as much as slicing a list; a jump to any
other position costs one window.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from prepserver.order.feistel import KeyedPermutation, U64Array
from prepserver.pipeline.shard import WHOLE, Shard

Shuffle = Literal["none", "full", "cyclic"]

MAX_SAMPLES = 1 << 40
_MAX_POSITION = 1 << 62

NO_SAMPLE = -1  # the index at a position without a sample: the end of a pass in a shard that is one sample short

# Long enough to spread numpy's cost per call (about 50 us for any short array), short enough that a jump costs about
# 100 us.
_WINDOW = 512
# Jobs that lag behind each other read at a few places of one stream.
_WINDOWS_KEPT = 8

# First part of every key: what the permutation is for.
_FULL, _DEAL, _BLOCK, _BATCH, _RUN = 1, 2, 3, 4, 5

# A block needs enough samples to shuffle well, and an epoch needs enough blocks to let jobs join soon.
_BLOCK_SAMPLES = 8192
_MAX_BLOCKS = 64

# A run of sorted samples should have many batches, so that each pass can cut it into other batches, and be a small part
# of all samples, so that its samples are alike.
_RUNS = 64
_RUN_BATCHES = range(2, 65)


class Order(ABC):
    """A pure function from positions to sample indices."""

    def __init__(self, n: int, samples: int | None = None, starts: tuple[int, ...] = (0,)) -> None:
        self.n = n  # positions of a pass: the samples of the source, or of one shard
        self.samples = n if samples is None else samples  # samples of the source; `n` by default
        # Offsets inside a pass at which segments begin; the first is 0. An epoch may begin at each.
        self.starts = starts
        self._ends = (*starts[1:], n)
        self._remember = lru_cache(maxsize=_WINDOWS_KEPT)(self._window)
        self._permutation = lru_cache(maxsize=4)(KeyedPermutation)

    @abstractmethod
    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> npt.NDArray[Any]:
        """Return the sample indices at `places` of a segment (uint64, shape (m,), below the segment's length)."""

    def at(self, pass_: int, places: U64Array) -> npt.NDArray[Any]:
        """Return the sample indices at any places of a pass (uint64, shape (m,), below n); other orders build on it."""
        if len(self.starts) == 1:
            return self._segment_values(pass_, 0, places)
        segments = np.searchsorted(np.asarray(self.starts, np.uint64), places, "right") - 1
        out = np.empty(len(places), np.int64)
        for segment in np.unique(segments).tolist():
            here = segments == segment
            out[here] = self._segment_values(pass_, segment, places[here] - np.uint64(self.starts[segment]))
        return out

    def _window(self, pass_: int, segment: int, window: int) -> list[int]:
        size = self._ends[segment] - self.starts[segment]
        first = window * _WINDOW
        places = np.arange(first, min(first + _WINDOW, size), dtype=np.uint64)
        values: list[int] = self._segment_values(pass_, segment, places).tolist()
        return values

    def indices(self, position: int, count: int) -> list[int]:
        """Return the sample indices at positions [position, position + count), which may cross blocks and passes.

        There is one for each position; `NO_SAMPLE` for a position without a sample.

        Raises:
            ValueError: `position` is not in [0, 2**62], or `count` is negative.
        """
        _check_run(position, count)
        out: list[int] = []
        while count:
            pass_, offset = divmod(position, self.n)
            segment = bisect_right(self.starts, offset) - 1
            window, place = divmod(offset - self.starts[segment], _WINDOW)
            run = self._remember(pass_, segment, window)[place : place + count]
            out += run
            position += len(run)
            count -= len(run)
        return out

    def next_start(self, position: int) -> int:
        """Return the smallest position at or after this one at which an epoch may begin: the start of a segment."""
        _check_run(position, 0)
        pass_, offset = divmod(position, self.n)
        segment = bisect_right(self.starts, offset - 1)
        return pass_ * self.n + (self.starts[segment] if segment < len(self.starts) else self.n)


class SequentialOrder(Order):
    """The samples in the order of the source, pass after pass."""

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> U64Array:
        return places


class FullOrder(Order):
    """A new permutation of all samples in each pass; `key` distinguishes the parts of a `WovenOrder`."""

    def __init__(self, n: int, seed: int, *key: int) -> None:
        super().__init__(n)
        self._seed, self._key = seed, key

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> U64Array:
        return self._permutation(self.n, _FULL, self._seed, pass_, *self._key)(places)


class CyclicOrder(Order):
    """Fixed random blocks in a fixed cycle; each pass reshuffles inside the blocks.

    The seed alone deals the samples into the blocks. So any n consecutive positions from the start of a block hold
    every sample exactly once, and a job may begin its epoch at any block, in any pass.

    The blocks begin at `starts`. By default there are K = n // 8192, at least 1 and at most 64, and block k covers
    offsets [k * n // K, (k + 1) * n // K). `key` distinguishes the parts of a `WovenOrder`.
    """

    def __init__(self, n: int, seed: int, *key: int, starts: tuple[int, ...] = ()) -> None:
        super().__init__(n, starts=starts or _block_starts(n, n))
        self._seed, self._key = seed, key
        self._deal = KeyedPermutation(n, _DEAL, seed, *key)

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> U64Array:
        size = self._ends[segment] - self.starts[segment]
        inside = self._permutation(size, _BLOCK, self._seed, pass_, segment, *self._key)(places)
        inside += np.uint64(self.starts[segment])
        return self._deal(inside)


class WovenOrder(Order):
    """Samples of several kinds in a repeating pattern; each kind is shuffled by itself, so the pattern stays.

    `parts` are the orders of each kind's samples, `pattern` is the kind of each place of a period, and `starts` (see
    `Order`) are multiples of the period.
    """

    def __init__(self, parts: list[Order], pattern: tuple[int, ...], starts: tuple[int, ...]) -> None:
        super().__init__(sum(part.n for part in parts), starts=starts)
        self._parts = parts
        kinds = np.array(pattern)
        self._slots = [np.flatnonzero(kinds == kind).astype(np.uint64) for kind in range(len(parts))]
        self._kinds, self._period = kinds, np.uint64(len(pattern))
        # How many places of its kind come before each place of a period.
        self._before = np.empty(len(pattern), np.uint64)
        for slots in self._slots:
            self._before[slots] = np.arange(len(slots))

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> U64Array:
        period, slot = np.divmod(places + np.uint64(self.starts[segment]), self._period)
        out = np.empty_like(places)
        for kind, (part, slots) in enumerate(zip(self._parts, self._slots, strict=True)):
            here = self._kinds[slot] == kind
            turns = np.uint64(len(slots))
            chosen = part.at(pass_, period[here] * turns + self._before[slot[here]]).astype(np.uint64)
            out[here] = chosen // turns * self._period + slots[chosen % turns]
        return out


class ShardOrder(Order):
    """One shard of another order: in each pass, one of every `count` places, the one with the shard's index.

    If samples have a pattern, whose length is `period`, shards would get some kinds more often than others. So the
    shards rotate their turns by one after every lcm(period, count) places of the pass.
    """

    def __init__(self, base: Order, shard: Shard, period: int = 1) -> None:
        super().__init__(shard.positions(base.n), base.samples)
        self._base = base
        self._shard = shard
        self._turn = np.uint64(period // math.gcd(period, shard.count))
        # Which shards are one sample short of a pass depends on their indices only.
        self._changing = base.n // shard.count if period > 1 else 0

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> npt.NDArray[Any]:
        count, mine = np.uint64(self._shard.count), np.full(len(places), self._shard.index, np.uint64)
        changed = places < self._changing
        mine[changed] = (mine[changed] + places[changed] // self._turn) % count
        of_all = places * count + mine
        values = np.full(len(places), NO_SAMPLE, np.int64)
        there = of_all < self._base.n
        values[there] = self._base.at(pass_, of_all[there])
        return values


class RunOrder(Order):
    """Runs of `run` consecutive samples, each reshuffled in each pass: its samples stay near each other."""

    def __init__(self, n: int, seed: int, run: int) -> None:
        super().__init__(n)
        self._seed, self._run = seed, run

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> U64Array:
        out = np.empty_like(places)
        runs = places // np.uint64(self._run)
        for run in np.unique(runs).tolist():
            here, first = runs == run, np.uint64(run * self._run)
            size = min(self._run, self.n - int(first))
            out[here] = self._permutation(size, _RUN, self._seed, pass_, run)(places[here] - first) + first
        return out


class BatchOrder(Order):
    """Whole batches of consecutive places of another order, reshuffled in each pass; the incomplete batch stays last.

    If the other order is a shard, all shards shuffle the same number of batches.
    """

    def __init__(self, base: Order, shard: Shard, seed: int, batch_rows: int) -> None:
        super().__init__(base.n, base.samples)
        self._base = base
        self._seed = seed
        self._shard = shard.index
        self._rows = np.uint64(batch_rows)
        self._batches = (base.n - shard.is_uneven(base.samples)) // batch_rows

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> npt.NDArray[Any]:
        batch, row = np.divmod(places, self._rows)
        whole = batch < self._batches
        moved = places.copy()
        if whole.any():
            shuffled = self._permutation(self._batches, _BATCH, self._seed, pass_, self._shard)
            moved[whole] = shuffled(batch[whole]) * self._rows + row[whole]
        return self._base.at(pass_, moved)


def make_order(
    shuffle: Shuffle, n: int, seed: int, shard: Shard = WHOLE, batch_rows: int = 0, pattern: tuple[int, ...] = (),
    is_sorted: bool = False,
) -> Order:  # fmt: skip
    """Return the order of a stream.

    Args:
        shuffle: "none" (as stored), "full" (a new permutation in each pass; an epoch begins where a pass does) or
            "cyclic" (an epoch begins at any block).
        n: Number of samples, 1 .. 2**40.
        seed: 0 .. 2**63 - 1; "none" does not use it.
        shard: The part of the samples that is wanted. An epoch of a part begins where a pass does.
        batch_rows: Shuffle whole batches of this many consecutive samples (of the shard) instead of samples, by a new
            permutation in each pass; `shuffle` must be "full". 0, the default, shuffles samples.
        pattern: The kinds of the samples, 0, 1 and so on, which repeat over the source: samples are shuffled among
            those of their kind only. Empty, the default, for one kind.
        is_sorted: Neighbours are alike. Each pass shuffles samples within runs of some batches: the batches change, but
            the samples in one stay alike. False, the default, for batches that are the same in each pass.

    Raises:
        ValueError: An argument is out of range.
    """
    if not 1 <= n <= MAX_SAMPLES:
        raise ValueError(f"n = {n}: an order needs 1 <= n <= 2**40 samples")
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed = {seed}: must be in [0, 2**63)")
    if batch_rows < 0 or (batch_rows and shuffle != "full"):
        raise ValueError(
            f"batch_rows = {batch_rows}: whole batches are shuffled by a full permutation, not {shuffle!r}"
        )
    if pattern and n % len(pattern):
        raise ValueError(f"n = {n}: must be a multiple of the {len(pattern)} samples of a pattern")
    if batch_rows and is_sorted:
        all_rows = batch_rows * shard.count  # consecutive samples that give each shard one batch
        batches = min(max(n // all_rows // _RUNS, _RUN_BATCHES.start), _RUN_BATCHES.stop - 1)
        base: Order = RunOrder(n, seed, batches * all_rows)
    else:
        base = _base_order("none" if batch_rows else shuffle, n, seed, pattern)
    if shard.count > 1:
        base = ShardOrder(base, shard, max(1, len(pattern)))
    return BatchOrder(base, shard, seed, batch_rows) if batch_rows else base


def _base_order(shuffle: Shuffle, n: int, seed: int, pattern: tuple[int, ...]) -> Order:
    turns = [pattern.count(kind) for kind in range(max(pattern, default=0) + 1)]
    if shuffle == "none":
        return SequentialOrder(n)
    if len(turns) == 1:
        return FullOrder(n, seed) if shuffle == "full" else CyclicOrder(n, seed)
    periods = n // len(pattern)
    starts = (0,) if shuffle == "full" else _block_starts(n, periods)
    parts: list[Order] = [
        FullOrder(periods * own, seed, kind)
        if shuffle == "full"
        else CyclicOrder(periods * own, seed, kind, starts=tuple(start * own for start in starts))
        for kind, own in enumerate(turns)
    ]
    return WovenOrder(parts, pattern, tuple(start * len(pattern) for start in starts))


def _block_starts(n: int, units: int) -> tuple[int, ...]:
    """Return where the blocks of a pass of `n` positions begin, counted in units that no two blocks share."""
    blocks = min(max(n // _BLOCK_SAMPLES, 1), _MAX_BLOCKS)
    return tuple(block * units // blocks for block in range(blocks))


def _check_run(position: int, count: int) -> None:
    if not 0 <= position <= _MAX_POSITION or count < 0:
        raise ValueError(f"position = {position}, count = {count}: both must be >= 0, position <= 2**62")
