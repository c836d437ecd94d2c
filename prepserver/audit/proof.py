"""The proof for one epoch: which samples came exactly once, and which did not.

Pure: an order, runs of positions, and out comes what became of every sample. It counts by sample and not by position,
so that it does not rest on the order being a permutation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from prepserver.order import NO_SAMPLE, Order

Run = tuple[int, int]
"""Positions [start, stop)."""

_STEP = 1 << 16  # positions that are turned into indices at a time
_UNTAKEN, _LEFT_OUT, _ELSEWHERE, _LOST = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the samples of an epoch. Each of them is in exactly one of these.

    Attributes:
        samples: Of the epoch.
        once: Came exactly once, themselves.
        missing: Indices of samples that never came, for no reason that the log knows.
        repeated: Indices of samples that came more than once.
        replaced: (index, position, reason) of samples that could not be made: another came in their place.
        lost: Indices of samples that went by, because the job was slow and had agreed to that.
        untaken: Samples that the job has not taken: it has not come so far, or left before.
        left_out: Samples that `drop_last` leaves out.
        elsewhere: Samples of ranks that other daemons serve.
    """

    samples: int
    once: int
    missing: list[int]
    repeated: list[int]
    replaced: list[tuple[int, int, str]]
    lost: list[int]
    untaken: int
    left_out: int
    elsewhere: int

    @property
    def exact(self) -> bool:
        """Whether all that was taken is right: each sample at most once, and none passed over."""
        return not (self.missing or self.repeated or self.replaced or self.lost)

    @property
    def whole(self) -> bool:
        """Whether the epoch is through: nothing is left to take."""
        return self.untaken == 0


def account(
    order: Order,
    start: int,
    taken: Iterable[Run],
    *,
    untaken: Iterable[Run] = (),
    left_out: Iterable[Run] = (),
    elsewhere: Iterable[Run] = (),
    lost: Iterable[Run] = (),
    replaced: Mapping[int, tuple[int, str]] | None = None,
) -> Account:
    """Counts the samples of the epoch of `order.n` positions that begins at `start`.

    Nine bytes of memory per sample while it runs. Of a shard, only its own samples count.

    Args:
        order: Positions to indices.
        start: Where the epoch began.
        taken: What the job took, of all ranks. A position in several runs was taken several times. Positions
            outside of the epoch count as another time for their samples.
        untaken: What it has still to take.
        left_out: See `Account`.
        elsewhere: See `Account`.
        lost: What went by though it was in a run of `taken`.
        replaced: Position to (index, reason) of rows that held another sample than their own.
    """
    n = order.n
    seen = np.zeros(order.samples, np.int32)
    own = np.full(order.samples, order.n == order.samples)
    lost = list(lost)
    cover = np.zeros(n, np.int32)
    stray: list[Run] = []
    for a, b in taken:
        cover[max(0, a - start) : max(0, b - start)] += 1
        if a < start:
            stray.append((a, min(b, start)))
        if b > start + n:
            stray.append((max(a, start + n), b))
    kind = np.zeros(n, np.uint8)
    for code, runs in ((_UNTAKEN, untaken), (_LEFT_OUT, left_out), (_ELSEWHERE, elsewhere), (_LOST, lost)):
        for a, b in runs:
            kind[max(0, a - start) : max(0, b - start)] = code
    cover[kind == _LOST] = 0
    why = np.zeros(order.samples, np.uint8)
    for offset in range(0, n, _STEP):
        stop = min(n, offset + _STEP)
        indices = np.asarray(order.indices(start + offset, stop - offset), np.int64)
        there = indices != NO_SAMPLE
        indices, times, kinds = indices[there], cover[offset:stop][there], kind[offset:stop][there]
        # add.at and not +=: an index that comes twice in a run must count twice
        np.add.at(seen, indices, times)
        own[indices] = True
        why[indices] = np.where(times > 0, 0, kinds)
    for a, b in stray:
        np.add.at(seen, [index for index in order.indices(a, b - a) if index != NO_SAMPLE], 1)
    bad: list[tuple[int, int, str]] = []
    for position, (index, reason) in sorted((replaced or {}).items()):
        offset = position - start
        if 0 <= offset < n and cover[offset] and order.indices(position, 1) == [index]:
            seen[index] -= cover[offset]
            bad.append((index, position, reason))
    is_bad = np.zeros(order.samples, bool)
    is_bad[[index for index, _, _ in bad]] = True
    never = (seen == 0) & own & ~is_bad
    return Account(
        samples=int(np.count_nonzero(own)),
        once=int(np.count_nonzero((seen == 1) & ~is_bad)),
        missing=np.flatnonzero(never & (why == 0)).tolist(),
        repeated=np.flatnonzero((seen > 1) & ~is_bad).tolist(),
        replaced=bad,
        lost=np.flatnonzero(never & (why == _LOST)).tolist(),
        untaken=int(np.count_nonzero(never & (why == _UNTAKEN))),
        left_out=int(np.count_nonzero(never & (why == _LEFT_OUT))),
        elsewhere=int(np.count_nonzero(never & (why == _ELSEWHERE))),
    )
