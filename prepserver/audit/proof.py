"""The proof for one epoch: which samples came exactly once, and which did not.

Pure: an order, runs of positions, and out comes what became of every sample. It counts by sample and not by position,
so that it does not rest on the order being a permutation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prepserver.order import NO_SAMPLE, Order

Run = tuple[int, int]
"""Positions [start, stop)."""

_STEP = 1 << 16  # positions that are turned into indices at a time
_UNTAKEN, _LEFT_OUT, _ELSEWHERE, _OUTSIDE = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the samples of an epoch. Each of them is in exactly one of these.

    Attributes:
        samples: Of the epoch.
        once: Came exactly once, themselves.
        missing: Indices of samples that never came, for no reason that the log knows.
        repeated: Indices of samples that came more than once.
        replaced: (index, position, reason) of samples that could not be made: another came in their place.
        untaken: Samples that the job has not taken: it has not come so far, or left before.
        left_out: Samples that `drop_last` leaves out.
        elsewhere: Samples of ranks and shards that other daemons serve.
        outside: Samples that were taken by what a checkpoint says, and of which the log does not know by whom: before
            it begins, or between two of its runs.
    """

    samples: int
    once: int
    missing: list[int]
    repeated: list[int]
    replaced: list[tuple[int, int, str]]
    untaken: int
    left_out: int
    elsewhere: int
    outside: int = 0

    @property
    def exact(self) -> bool:
        """Whether all that was taken is right: each sample at most once, and none passed over."""
        return not (self.missing or self.repeated or self.replaced)

    @property
    def whole(self) -> bool:
        """Whether the epoch is through: nothing is left to take."""
        return self.untaken == 0


class Tally:
    """Counts by sample what came of it, in all the lines in which it may come.

    Nine bytes of memory per sample, and five per position of a line while that is added. Of a shard, only its own
    samples count.

    Args:
        samples: Of the source.
    """

    def __init__(self, samples: int) -> None:
        self._seen = np.zeros(samples, np.int32)
        self._own = np.zeros(samples, bool)
        self._why = np.zeros(samples, np.uint8)
        self._bad: list[tuple[int, int, str]] = []

    def lay(self, order: Order, start: int, stop: int, why: Literal["outside", "elsewhere"]) -> None:
        """The samples at [start, stop) count, and have this reason not to come; before all `add`."""
        for offset in range(start, stop, _STEP):
            indices = np.asarray(order.indices(offset, min(stop - offset, _STEP)), np.int64)
            indices = indices[indices != NO_SAMPLE]
            self._own[indices] = True
            self._why[indices] = _OUTSIDE if why == "outside" else _ELSEWHERE

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
        """What came in one line, of `order`, of the epoch of `order.n` positions that begins at `start`.

        Args:
            order: Positions to indices.
            start: Where the epoch began.
            taken: What the job took, of all ranks. A position in several runs was taken several times. Positions
                outside of the epoch count as another time for their samples.
            own: The positions that are this line's to give, to which the runs that follow apply; None for all. Those
                of `taken` count anyway.
            untaken: What it has still to take.
            left_out: See `Account`.
            elsewhere: See `Account`.
            replaced: Position to (index, reason) of rows that held another sample than their own.
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
        for code, runs in ((_UNTAKEN, untaken), (_LEFT_OUT, left_out), (_ELSEWHERE, elsewhere)):
            for a, b in runs:
                kind[max(0, a - start) : max(0, b - start)] = code
        first, until = own if own is not None else (start, start + n)
        covered = np.flatnonzero(cover)
        low = min([first - start, *covered[:1]])
        high = max([until - start, *(covered[-1:] + 1)])
        for offset in range(low, high, _STEP):
            stop = min(high, offset + _STEP)
            indices = np.asarray(order.indices(start + offset, stop - offset), np.int64)
            there = indices != NO_SAMPLE
            # add.at and not +=: an index that comes twice in a run must count twice
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
        """The sum."""
        seen, why = self._seen, self._why
        is_bad = np.zeros(len(seen), bool)
        is_bad[[index for index, _, _ in self._bad]] = True
        never = (seen == 0) & self._own & ~is_bad
        return Account(
            samples=int(np.count_nonzero(self._own)),
            once=int(np.count_nonzero((seen == 1) & ~is_bad)),
            missing=np.flatnonzero(never & (why == 0)).tolist(),
            repeated=np.flatnonzero((seen > 1) & ~is_bad).tolist(),
            replaced=self._bad,
            untaken=int(np.count_nonzero(never & (why == _UNTAKEN))),
            left_out=int(np.count_nonzero(never & (why == _LEFT_OUT))),
            elsewhere=int(np.count_nonzero(never & (why == _ELSEWHERE))),
            outside=int(np.count_nonzero(never & (why == _OUTSIDE))),
        )
