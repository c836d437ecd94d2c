"""The proof for one epoch: which samples came exactly once, and which did not.

A pure function of an order and runs of positions. It counts samples and not positions, so it does not rely on the order
being a permutation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prepserver.order import NO_SAMPLE, Order

Run = tuple[int, int]  # positions [start, stop)

_STEP = 1 << 16  # positions that are mapped to indices at a time
_WHY = ("missing", "untaken", "left_out", "elsewhere", "outside")
"""Why a sample did not come; arrays hold indices into this tuple."""


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the samples of an epoch. Each sample is in exactly one of these groups."""

    samples: int  # samples of the epoch
    once: int  # number of samples that came exactly once, not replaced
    missing: list[int]  # indices of samples that never came, and the log does not say why
    repeated: list[int]  # indices of samples that came more than once
    # (index, position, reason) of samples that could not be made: another came in their place
    replaced: list[tuple[int, int, str]]
    untaken: int  # number of samples that the job has not taken yet, or had not taken when it left
    left_out: int  # number of samples that `drop_last` leaves out
    elsewhere: int  # number of samples of ranks and shards that other daemons serve
    # number of samples that were taken according to a checkpoint, before this log begins or between two of its runs
    outside: int = 0

    @property
    def exact(self) -> bool:
        """Whether everything so far is right: each sample came at most once, and none was skipped."""
        return not (self.missing or self.repeated or self.replaced)

    @property
    def whole(self) -> bool:
        """Whether nothing is left to take."""
        return self.untaken == 0


class Tally:
    """Counts for each sample how often it came, in every shard in which it may come.

    It takes nine bytes of memory per sample, and five per position of a shard while that is added. If one shard was
    read, only its samples count.
    """

    def __init__(self, samples: int) -> None:
        self._seen = np.zeros(samples, np.int32)
        self._own = np.zeros(samples, bool)
        self._why = np.zeros(samples, np.uint8)
        self._bad: list[tuple[int, int, str]] = []

    def lay(self, order: Order, start: int, stop: int, why: Literal["outside", "elsewhere"]) -> None:
        """Expects the samples at [start, stop), and notes why they may not come. Call it before `add`."""
        for offset in range(start, stop, _STEP):
            indices = np.asarray(order.indices(offset, min(stop - offset, _STEP)), np.int64)
            indices = indices[indices != NO_SAMPLE]
            self._own[indices] = True
            self._why[indices] = _WHY.index(why)

    def add(
        self,
        order: Order,
        start: int,
        taken: Iterable[Run],
        *,
        own: Run | None = None,
        untaken: Iterable[Run] = (),
        left_out: Iterable[Run] = (),
        elsewhere: Iterable[Run] = (),
        replaced: Mapping[int, tuple[int, str]] | None = None,
    ) -> None:
        """Counts the samples of one shard's epoch, which begins at position `start`.

        `taken` are the runs that the ranks of the job took; a position in several runs was taken several times. A
        position outside of the epoch counts as one more time for its sample. `untaken`, `left_out` and `elsewhere`, see
        `Account`, apply to the positions of `own`, by default to all. Rows that were `replaced`, position to (index,
        reason), held another sample than their own.
        """
        n = order.n
        self._own |= n == order.samples
        cover = np.zeros(n, np.int32)
        stray: list[Run] = []
        for a, b in taken:
            cover[max(0, a - start) : max(0, b - start)] += 1
            if a < start:
                stray.append((a, min(b, start)))
            if b > start + n:
                stray.append((max(a, start + n), b))
        kind = np.zeros(n, np.uint8)
        for why, runs in (("untaken", untaken), ("left_out", left_out), ("elsewhere", elsewhere)):
            for a, b in runs:
                kind[max(0, a - start) : max(0, b - start)] = _WHY.index(why)
        first, until = own if own is not None else (start, start + n)
        covered = np.flatnonzero(cover)
        low = min([first - start, *covered[:1]])
        high = max([until - start, *(covered[-1:] + 1)])
        for offset in range(low, high, _STEP):
            stop = min(high, offset + _STEP)
            indices = np.asarray(order.indices(start + offset, stop - offset), np.int64)
            there = indices != NO_SAMPLE
            # add.at, not +=, which would count an index only once per run
            np.add.at(self._seen, indices[there], cover[offset:stop][there])
            self._own[indices[there]] = True
            at = np.arange(start + offset, start + stop)
            there &= (at >= first) & (at < until)
            self._why[indices[there]] = np.where(cover[offset:stop] > 0, 0, kind[offset:stop])[there]
        for a, b in stray:
            np.add.at(self._seen, [index for index in order.indices(a, b - a) if index != NO_SAMPLE], 1)
        for position, (index, reason) in sorted((replaced or {}).items()):
            offset = position - start
            if 0 <= offset < n and cover[offset] and order.indices(position, 1) == [index]:
                self._seen[index] -= cover[offset]
                self._bad.append((index, position, reason))

    def account(self) -> Account:
        """The result."""
        seen, why = self._seen, self._why
        is_bad = np.zeros(len(seen), bool)
        is_bad[[index for index, _, _ in self._bad]] = True
        never = (seen == 0) & self._own & ~is_bad
        return Account(
            samples=int(np.count_nonzero(self._own)),
            once=int(np.count_nonzero((seen == 1) & ~is_bad)),
            missing=np.flatnonzero(never & (why == _WHY.index("missing"))).tolist(),
            repeated=np.flatnonzero((seen > 1) & ~is_bad).tolist(),
            replaced=self._bad,
            **{name: int(np.count_nonzero(never & (why == code))) for code, name in enumerate(_WHY) if code},
        )
