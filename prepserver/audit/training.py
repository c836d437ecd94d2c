"""A training over all that its log holds: other shards before and after a checkpoint, or several at one daemon.

A machine reads shard i of S, and after a checkpoint maybe another one, or of another number. Its log holds what it
made itself, and the checkpoint says only how many samples all machines had taken together. So the proof is of the
machine's own part: what its shards gave out before and after, each sample once. What its runs left to other shards is
`elsewhere`. What was taken before the log begins, or between two of its runs, is `outside`: which machine took it is
not written here, so that this log neither proves it nor refutes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from prepserver.audit.history import Epoch, History, Run, goes_on, run_of
from prepserver.audit.proof import Account, Tally
from prepserver.audit.records import Rows
from prepserver.audit.stays import Stay
from prepserver.order import Order, make_order
from prepserver.pipeline.shard import WHOLE, Shard


class Training:
    """See the module.

    Args:
        stays: In the order of the log.

    Attributes:
        stays: As given.
        histories: One for each shard of each leg, see `_legs`.
    """

    def __init__(self, stays: Sequence[Stay]) -> None:
        self.stays = stays
        self.histories: list[History] = []
        legs = _legs(stays)
        later: list[Stay] = []  # where the next leg begins, and where the lowest of all the next ones does
        for leg in reversed(legs):
            shards = sorted({stay.rows.shard_index for stay in leg})
            parts = [[stay for stay in leg if stay.rows.shard_index == shard] for shard in shards]
            self.histories[:0] = [History(part, later) for part in parts]
            later = [leg[0], min([*leg, *later], key=_offset)]

    @property
    def shards(self) -> list[Shard]:
        """Those that it read, in the order of the log."""
        return list(dict.fromkeys(history.rows.shard for history in self.histories))

    @property
    def epochs(self) -> list[list[Epoch]]:
        """By number: what each history has of it."""
        found = sorted((epoch for history in self.histories for epoch in history.epochs), key=lambda e: e.number)
        return [list(epochs) for _, epochs in groupby(found, key=lambda e: e.number)]

    def again(self, number: int) -> int:
        """Rows of epoch `number` that were taken, and taken again after it had gone back."""
        return sum(history.again[number] for history in self.histories)


def judged(parts: Sequence[Epoch]) -> Account:
    """What became of the samples of an epoch.

    Of one shard its own samples count, where more than one was read all of them.

    Args:
        parts: What each history has of it.
    """
    rows, start = parts[0].rows, parts[0].start
    tally = Tally(rows.n)
    if len({part.rows.shard for part in parts}) > 1:
        tally.lay(_order(rows, WHOLE), 0, rows.n, "outside")
        for part in parts:
            here = [other.rows.shard for other in parts if other.first == part.first]  # at once, so no other daemon's
            for shard in (Shard(part.rows.num_shards, index) for index in range(part.rows.num_shards)):
                if shard not in here:
                    tally.lay(_order(part.rows, shard), *part.own, "elsewhere")
    elif not all(part.is_whole for part in parts):
        tally.lay(_order(rows, rows.shard), start, start + rows.positions, "outside")
    for part in parts:
        tally.add(
            _order(part.rows, part.rows.shard), part.start, part.taken(), own=part.own, untaken=part.untaken(),
            left_out=part.left_out(), elsewhere=part.elsewhere(), replaced=part.replaced(),
        )  # fmt: skip
    return tally.account()


def _order(rows: Rows, shard: Shard) -> Order:
    return make_order(rows.shuffle, rows.n, rows.seed, shard, rows.batch_rows)


def _offset(stay: Stay) -> tuple[int, int]:
    a = stay.attached
    return a.epoch, (a.position - a.epoch_start) * stay.rows.num_shards


def _legs(stays: Sequence[Stay]) -> list[list[Stay]]:
    """The stays, parted where a checkpoint may have gone through other machines' hands.

    That is where the number of shards changes, or which one this machine reads; and at every checkpoint of a training
    of which other daemons have a part. One that was all here before and after was not elsewhere in between: what it
    lacks is missing. Shards that were read here at once are in one leg.
    """
    legs: list[list[Stay]] = []
    run: Run | None = None
    for stay in stays:
        if run is None or not _joins(legs[-1], run, stay):
            legs.append([])
            run = run_of(stay)
        legs[-1].append(stay)
    return legs


def _joins(leg: Sequence[Stay], run: Run, stay: Stay) -> bool:
    if stay.rows.num_shards != leg[0].rows.num_shards:
        return False
    if _is_all_here(stay) and _is_all_here(leg[-1]):
        return True
    if run_of(stay) == run:
        return True
    known = any(stay.rows.shard == other.rows.shard for other in leg)
    return goes_on(run, stay) and (known or not stay.attached.resumed)


def _is_all_here(stay: Stay) -> bool:
    local = stay.attached.local_ranks
    return stay.rows.num_shards == 1 and (local is None or local[1] == stay.attached.world_size)
