"""A whole training, with different shards before and after a checkpoint, or several shards at one daemon.

A machine reads shard i of S, and after a checkpoint perhaps another shard, or one of another S. Its log holds only what
it delivered itself, and the checkpoint only how many samples all machines had taken together. So the log proves the
machine's own part: its shards delivered each sample once. Samples of other shards are `elsewhere`. Samples taken before
the log begins, or between two of its runs, are `outside`: this log neither proves nor refutes them.
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
from prepserver.pipeline.sources import arrangement_of


class Training:
    """One training, from its stays in the order of the log."""

    def __init__(self, stays: Sequence[Stay]) -> None:
        self.stays = stays
        self.histories: list[History] = []  # one for each shard of each leg
        legs = _legs(stays)
        later: list[Stay] = []  # the first stay of the next leg, and the lowest start of all later legs
        for leg in reversed(legs):
            shards = sorted({stay.rows.shard_index for stay in leg})
            parts = [[stay for stay in leg if stay.rows.shard_index == shard] for shard in shards]
            self.histories[:0] = [History(part, later) for part in parts]
            later = [leg[0], min([*leg, *later], key=_offset)]

    @property
    def shards(self) -> list[Shard]:
        """The shards that it read, in the order of the log."""
        return list(dict.fromkeys(history.rows.shard for history in self.histories))

    @property
    def epochs(self) -> list[list[Epoch]]:
        """What each history has of each epoch, by number of the epoch."""
        found = sorted((epoch for history in self.histories for epoch in history.epochs), key=lambda e: e.number)
        return [list(epochs) for _, epochs in groupby(found, key=lambda e: e.number)]

    def again(self, number: int) -> int:
        """Rows of epoch `number` that were taken again after the training went back to a checkpoint."""
        return sum(history.again[number] for history in self.histories)


def judged(parts: Sequence[Epoch]) -> Account:
    """What became of the samples of an epoch, or of one shard if the log has only that, from all histories."""
    rows, start = parts[0].rows, parts[0].start
    tally = Tally(rows.n)
    if len({part.rows.shard for part in parts}) > 1:
        tally.lay(_order(rows, WHOLE), 0, rows.n, "outside")
        for part in parts:
            here = [other.rows.shard for other in parts if other.first == part.first]  # read here at the same time
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
    return make_order(rows.shuffle, rows.n, rows.seed, shard, rows.batch_rows, *arrangement_of(rows.source))


def _offset(stay: Stay) -> tuple[int, int]:
    a = stay.attached
    return a.epoch, (a.position - a.epoch_start) * stay.rows.num_shards


def _legs(stays: Sequence[Stay]) -> list[list[Stay]]:
    """The stays, split where the training may have continued on other machines in between.

    That is where the number of shards or this machine's shard changes, and at every checkpoint of a training that other
    daemons serve too. A training that was entirely here before and after cannot have been elsewhere: samples that it
    lacks are missing. Shards that were read here at the same time are in one leg.
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
