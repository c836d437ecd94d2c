"""The orders: as stored, a new permutation for each pass, and cyclic blocks; a part of one of them, or whole batches.

Position p belongs to pass p // n. A pass falls into segments (the whole pass, or one block of it), and
inside a segment an order is one or two keyed permutations. The order computes aligned windows of a segment
at a time and remembers the last few: chunks are asked for one after the other, so a call of 16 positions
costs about as much as slicing a list, while any other position stays one window away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from functools import lru_cache
from typing import Any, Literal, Protocol, assert_never

import numpy as np
import numpy.typing as npt

from prepserver.order.feistel import KeyedPermutation, U64Array
from prepserver.pipeline.shard import WHOLE, Shard

Shuffle = Literal["none", "full", "cyclic"]

MAX_SAMPLES = 1 << 40
_MAX_POSITION = 1 << 62

NO_SAMPLE = -1
"""The index at a position that holds no sample: the end of a pass in a shard that is one short."""

# Long enough to spread numpy's cost per call (about 50 us for any short array), short enough that a jump
# costs about 100 us.
_WINDOW = 512
# Jobs that lag behind each other ask around a few places of one stream.
_WINDOWS_KEPT = 8

# First part of every key: what the permutation is for.
_FULL, _DEAL, _BLOCK, _BATCH = 1, 2, 3, 4

# A block should hold enough samples to shuffle well, and an epoch enough starts to join soon.
_BLOCK_SAMPLES = 8192
_MAX_BLOCKS = 64


class Order(Protocol):
    """A pure function from positions to sample indices."""

    @property
    def n(self) -> int:
        """Positions of a pass: the samples of the source, or of a shard's part of them."""

    @property
    def samples(self) -> int:
        """Samples of the source."""

    def indices(self, position: int, count: int) -> list[int]:
        """The sample indices at positions [position, position + count).

        Args:
            position: First position, 0 .. 2**62.
            count: How many, 0 or more. The run may cross blocks and passes.

        Returns:
            One for each position; `NO_SAMPLE` where there is none.

        Raises:
            ValueError: position or count is out of range.
        """

    def next_start(self, position: int) -> int:
        """The smallest position at or after this one at which an epoch may begin."""


class SequentialOrder:
    """Samples in the order of the source, pass after pass."""

    def __init__(self, n: int) -> None:
        self.n = self.samples = n

    def indices(self, position: int, count: int) -> list[int]:
        """As `Order.indices`."""
        _check_run(position, count)
        out: list[int] = []
        offset = position % self.n
        while len(out) < count:
            stop = min(self.n, offset + count - len(out))
            out.extend(range(offset, stop))
            offset = 0
        return out

    def next_start(self, position: int) -> int:
        """As `Order.next_start`: a multiple of n."""
        _check_run(position, 0)
        return -(-position // self.n) * self.n

    def at(self, _pass: int, places: U64Array) -> U64Array:
        """As `_SegmentedOrder.at`."""
        return places


class _SegmentedOrder(ABC):
    """An order that is made of segments, each shuffled in itself.

    A subclass says where segments begin inside a pass and what one window of a segment holds.
    """

    def __init__(self, n: int, seed: int, starts: tuple[int, ...]) -> None:
        self.n = self.samples = n
        self.seed = seed
        self._starts = starts
        self._ends = (*starts[1:], n)
        self._remember = lru_cache(maxsize=_WINDOWS_KEPT)(self._window)

    @abstractmethod
    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> npt.NDArray[Any]:
        """Sample indices at these places of a segment (uint64, shape (m,), 0 .. segment length)."""

    def at(self, pass_: int, places: U64Array) -> npt.NDArray[Any]:
        """Sample indices at any places of a pass (uint64, shape (m,), 0 .. n), for an order over this one."""
        segments = np.searchsorted(np.asarray(self._starts, np.uint64), places, "right") - 1
        out = np.empty(len(places), np.int64)
        for segment in np.unique(segments).tolist():
            here = segments == segment
            out[here] = self._segment_values(pass_, segment, places[here] - np.uint64(self._starts[segment]))
        return out

    def _window(self, pass_: int, segment: int, window: int) -> list[int]:
        size = self._ends[segment] - self._starts[segment]
        first = window * _WINDOW
        places = np.arange(first, min(first + _WINDOW, size), dtype=np.uint64)
        values: list[int] = self._segment_values(pass_, segment, places).tolist()
        return values

    def indices(self, position: int, count: int) -> list[int]:
        """As `Order.indices`."""
        _check_run(position, count)
        out: list[int] = []
        while count:
            pass_, offset = divmod(position, self.n)
            segment = bisect_right(self._starts, offset) - 1
            window, place = divmod(offset - self._starts[segment], _WINDOW)
            run = self._remember(pass_, segment, window)[place : place + count]
            out += run
            position += len(run)
            count -= len(run)
        return out

    def next_start(self, position: int) -> int:
        """As `Order.next_start`: the start of a segment."""
        _check_run(position, 0)
        pass_, offset = divmod(position, self.n)
        segment = bisect_right(self._starts, offset - 1)
        return pass_ * self.n + (self._starts[segment] if segment < len(self._starts) else self.n)


class FullOrder(_SegmentedOrder):
    """A new permutation of all samples for each pass."""

    def __init__(self, n: int, seed: int) -> None:
        super().__init__(n, seed, (0,))
        self._permutation = lru_cache(maxsize=4)(self._make_permutation)

    def _make_permutation(self, pass_: int) -> KeyedPermutation:
        return KeyedPermutation(self.n, _FULL, self.seed, pass_)

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> U64Array:
        return self._permutation(pass_)(places)


class CyclicOrder(_SegmentedOrder):
    """Fixed random blocks in a fixed cycle, reshuffled inside for each pass.

    The seed alone deals the samples into the blocks, so that any n consecutive positions from the start of
    a block hold every sample exactly once: a job may begin its epoch at any block, in any pass.

    Attributes:
        num_blocks: K = n // 8192, at least 1 and at most 64.
        block_starts: Offsets inside a pass at which the blocks begin, K of them; the first is 0. Block k
            covers offsets [k * n // K, (k + 1) * n // K).
    """

    def __init__(self, n: int, seed: int) -> None:
        blocks = min(max(n // _BLOCK_SAMPLES, 1), _MAX_BLOCKS)
        super().__init__(n, seed, tuple(block * n // blocks for block in range(blocks)))
        self.num_blocks = blocks
        self.block_starts = self._starts
        self._deal = KeyedPermutation(n, _DEAL, seed)
        self._permutation = lru_cache(maxsize=4)(self._make_permutation)

    def _make_permutation(self, pass_: int, block: int) -> KeyedPermutation:
        return KeyedPermutation(self._ends[block] - self._starts[block], _BLOCK, self.seed, pass_, block)

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> U64Array:
        inside = self._permutation(pass_, segment)(places)
        inside += np.uint64(self._starts[segment])
        return self._deal(inside)


class ShardOrder(_SegmentedOrder):
    """The part of another order that one shard gets: of each pass every `count`-th place.

    Args:
        base: The order of all samples.
        shard: Which part.
        seed: That of `base`.
    """

    def __init__(self, base: SequentialOrder | _SegmentedOrder, shard: Shard, seed: int) -> None:
        super().__init__(shard.positions(base.n), seed, (0,))
        self.samples = base.samples
        self._base = base
        self._shard = shard

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> npt.NDArray[Any]:
        of_all = places * np.uint64(self._shard.count) + np.uint64(self._shard.index)
        values = np.full(len(places), NO_SAMPLE, np.int64)
        there = of_all < self._base.n
        values[there] = self._base.at(pass_, of_all[there])
        return values


class BatchOrder(_SegmentedOrder):
    """Whole batches of consecutive places of another order, shuffled anew for each pass; what fills none stays last.

    Args:
        base: The order that is cut into batches.
        shard: Which part of the samples that is: all shards shuffle the same number of batches.
        seed: Of the permutations.
        batch_rows: Rows of a batch.
    """

    def __init__(self, base: SequentialOrder | _SegmentedOrder, shard: Shard, seed: int, batch_rows: int) -> None:
        super().__init__(base.n, seed, (0,))
        self.samples = base.samples
        self._base = base
        self._shard = shard.index
        self._rows = np.uint64(batch_rows)
        self._batches = (base.n - shard.is_uneven(base.samples)) // batch_rows
        self._permutation = lru_cache(maxsize=4)(self._make_permutation)

    def _make_permutation(self, pass_: int) -> KeyedPermutation:
        return KeyedPermutation(self._batches, _BATCH, self.seed, pass_, self._shard)

    def _segment_values(self, pass_: int, segment: int, places: U64Array) -> npt.NDArray[Any]:
        batch, row = np.divmod(places, self._rows)
        whole = batch < self._batches
        moved = places.copy()
        if whole.any():
            moved[whole] = self._permutation(pass_)(batch[whole]) * self._rows + row[whole]
        return self._base.at(pass_, moved)


def make_order(shuffle: Shuffle, n: int, seed: int, shard: Shard = WHOLE, batch_rows: int = 0) -> Order:
    """The order of a stream.

    Args:
        shuffle: "none" (as stored), "full" (a new permutation for each pass; an epoch begins where a pass
            does) or "cyclic" (an epoch begins at any block).
        n: Number of samples, 1 .. 2**40.
        seed: 0 .. 2**63 - 1; not used by "none".
        shard: The part of the samples that is wanted. An epoch of a part begins where a pass does.
        batch_rows: Shuffle whole batches of so many consecutive samples (of the shard) instead of samples: a new
            permutation for each pass, so `shuffle` must be "full".

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
    base = _base_order("none" if batch_rows else shuffle, n, seed)
    if shard.count > 1:
        base = ShardOrder(base, shard, seed)
    return BatchOrder(base, shard, seed, batch_rows) if batch_rows else base


def _base_order(shuffle: Shuffle, n: int, seed: int) -> SequentialOrder | _SegmentedOrder:
    match shuffle:
        case "none":
            return SequentialOrder(n)
        case "full":
            return FullOrder(n, seed)
        case "cyclic":
            return CyclicOrder(n, seed)
        case _ as unknown:
            assert_never(unknown)


def _check_run(position: int, count: int) -> None:
    if not 0 <= position <= _MAX_POSITION or count < 0:
        raise ValueError(f"position = {position}, count = {count}: both must be >= 0, position <= 2**62")
