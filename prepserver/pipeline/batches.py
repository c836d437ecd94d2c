"""Which rows make which batch: the arithmetic that client and daemon must agree on.

A job's epoch is a run of n positions, cut into rounds of ``world_size`` batches; rank r takes the r-th batch of each
round. All ranks get the same number of batches, and together they get each row exactly once (unless ``drop_last``). If
the remaining rows do not fill a round, they are split evenly; if they would not even give each rank one row, the last
two rounds are split evenly. With ``batch_size=1``, or if a resumed epoch has fewer rows left than ranks, some rank's
last batch is empty; ``drop_last=True`` avoids that.

All shards of a job (`prepserver.pipeline.shard`) are cut alike, so that all ranks of all machines get the same number
of batches. If the last position of an epoch holds no sample in some shards, their last batch is one row shorter.

Batches may also cross the ends of epochs (shuffle-repeat-batch). Then all batches are full, and a round belongs to the
epoch in which it begins. An epoch ends with the round that holds its last sample, and the next epoch begins after that
round; so some epochs have one round fewer than others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from prepserver.pipeline.shard import WHOLE, Shard

Batching = Literal["shuffle-batch-repeat", "shuffle-repeat-batch", "batch-shuffle-repeat"]
"""The order in which samples are shuffled, batched and repeated, in tf.data's words."""


class Starts(Protocol):
    """Where epochs may begin in an order of samples; see `prepserver.order.Order`."""

    @property
    def n(self) -> int:
        """Positions of a pass."""

    def next_start(self, position: int) -> int:
        """The smallest position at or after this one at which an epoch may begin."""

    def indices(self, position: int, count: int) -> list[int]:
        """The samples at `count` positions from this one on."""


def check_start(order: Starts, first: int, epoch: int) -> None:
    """Checks where a run may begin: an epoch from anywhere else would not have each sample once.

    Epoch 0 begins at `first`, or would have begun there; `epoch` is the one that is to begin now.

    Raises:
        ValueError: No epoch begins there; the text names the next place where one does.
    """
    begins = first + epoch * order.n
    if begins < 0:
        raise ValueError(f"start = {first}: epoch {epoch} would begin before position 0")
    if (following := order.next_start(begins)) != begins:
        raise ValueError(
            f"start = {first}: no epoch begins there in this order; the next place is {following - epoch * order.n}"
        )


def batch_rows(batching: Batching, batch_size: int) -> int:
    """Return the rows of the batches that are shuffled as a whole; 0 if samples are shuffled."""
    return batch_size if batching == "batch-shuffle-repeat" else 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows [start, stop) of the stream, one batch of a rank."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How a rank's samples are cut into batches; `EpochPlan` explains the first four fields."""

    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    shard: Shard = WHOLE  # which part of the samples; positions count within it
    batching: Batching = "shuffle-batch-repeat"  # whether batches cross the ends of epochs


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The batches of one rank over positions [start, stop): an epoch, or what is left of a resumed one."""

    start: int  # first position
    stop: int  # one past the last position
    batch_size: int  # rows in a full batch of one rank
    drop_last: bool = False  # leave out rows that do not fill a round, as DataLoader and DistributedSampler do
    rank: int = 0  # this process, 0 <= rank < world_size
    world_size: int = 1  # processes that share the epoch
    uneven: bool = False  # the last position holds no sample in some shards
    short: bool = False  # the last position holds no sample in this shard
    crossing: bool = False  # batches cross the end of the epoch

    @property
    def end(self) -> int:
        """One past the last position of its batches."""
        return self.start + len(self) * self.round_rows if self.crossing else self.stop

    @property
    def round_rows(self) -> int:
        """Rows of a full round of all ranks."""
        return self.batch_size * self.world_size

    @property
    def _full_rounds(self) -> int:
        """Rounds in which every batch has `batch_size` rows."""
        rows = self.stop - self.start
        if self.crossing:
            return max(0, -(-rows // self.round_rows))
        if self.drop_last:
            return max(0, rows - self.uneven) // self.round_rows
        full, rest = divmod(rows, self.round_rows)
        if 0 < rest < self.world_size + self.uneven and full:
            full -= 1  # too few rows left to give each rank one: they are split together with the last full round
        return full

    @property
    def _tail_rounds(self) -> int:
        if self.drop_last or self.crossing:
            return 0
        rest = self.stop - self.start - self._full_rounds * self.round_rows
        if rest == 0:
            return 0
        return 1 if rest <= self.round_rows else 2

    def __len__(self) -> int:
        """Return the number of batches that each rank gets."""
        return self._full_rounds + self._tail_rounds

    def batch(self, number: int) -> Batch:
        """Return batch `number` of this rank; raises `IndexError` if the epoch has none."""
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of an epoch with {len(self)}")
        full = self._full_rounds
        if number < full:
            at = self.start + number * self.round_rows + self.rank * self.batch_size
            return self._batch(at, at + self.batch_size)
        base = self.start + full * self.round_rows
        rest = self.stop - base
        parts = self._tail_rounds * self.world_size
        part = (number - full) * self.world_size + self.rank
        return self._batch(base + part * rest // parts, base + (part + 1) * rest // parts)

    def _batch(self, start: int, stop: int) -> Batch:
        # The last part is the largest, so it is the one that lacks the missing row.
        return Batch(start, min(stop, self.end - self.short))

    def resume_position(self, number: int) -> int:
        """Return the position at which round `number` begins: where all ranks stand after `number` rounds."""
        full = self._full_rounds
        if number <= full:
            return self.start + number * self.round_rows
        base = self.start + full * self.round_rows
        return base + (number - full) * (self.stop - base) // max(1, self._tail_rounds)


class BatchLine:
    """One rank's endless line of batches of a source, epoch after epoch, cut by `shape`.

    The job's current epoch began at `epoch_start`, and the job is at `position` in it: epoch_start <= position <
    epoch_start + positions of the shard. From there on this rank has had `rounds` batches already.

    Raises:
        ValueError: An epoch would have no batch, or the numbers contradict each other.
    """

    def __init__(self, samples: int, shape: BatchShape, epoch_start: int, position: int, rounds: int = 0) -> None:
        batch_size, rank, world_size, shard = shape.batch_size, shape.rank, shape.world_size, shape.shard
        n = shard.positions(samples)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank = {rank} is not in [0, world_size = {world_size})")
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size}: a batch has at least one row")
        if not epoch_start <= position <= epoch_start + n:
            raise ValueError(f"position {position} is not in the epoch [{epoch_start}, {epoch_start + n}]")
        self.n = n  # positions of an epoch
        self.epoch_start = epoch_start
        self._shape = shape
        self._uneven, self._short = shard.is_uneven(samples), shard.is_short(samples)
        self._crossing = shape.batching == "shuffle-repeat-batch"
        if self._crossing and self._uneven:
            raise ValueError(
                f"{samples} samples are not num_shards = {shard.count} equal parts: a batch that crosses epochs "
                "(order='shuffle-repeat-batch') would have a hole in some shards"
            )
        if self._crossing and batch_size * world_size > n:
            raise ValueError(
                f"batch_size = {batch_size} for world_size = {world_size} is more than an epoch of {n} rows"
                f"{_of(shard)}: batches that cross epochs would pass over some"
            )
        self.full_epoch = self._plan(0, n)  # an epoch from its first to its last position
        if len(self.full_epoch) == 0:
            raise ValueError(
                f"an epoch of {samples} samples has no batch of batch_size = {batch_size} for "
                f"world_size = {world_size}{' with drop_last' if shape.drop_last else ''}{_of(shard)}"
            )
        if samples < world_size * shard.count:
            raise ValueError(f"{samples} samples cannot be dealt to world_size = {world_size} ranks{_of(shard)}")
        # The current epoch, or what a resumed job has left of it.
        self.plan = self._plan(position, epoch_start + n)
        self._count = len(self.plan)  # needed for every batch, in the daemon and in the client
        if not 0 <= rounds <= self._count:
            raise ValueError(f"rounds = {rounds} of an epoch with {self._count} batches left")
        self.number = rounds  # batches of `plan` that this rank has had
        self._next: Batch | None = None  # computed once, peeked at many times
        self._skip_empty()

    def __copy__(self) -> BatchLine:
        made = object.__new__(BatchLine)  # for each batch: copy.copy by itself takes ten times as long
        made.__dict__.update(self.__dict__)
        return made

    def peek(self) -> Batch:
        """Return the next batch."""
        if self._next is None:
            self._next = self.plan.batch(self.number)
        return self._next

    def advance(self) -> None:
        """Move on to the batch after the next one, across the end of the epoch if need be."""
        self.number += 1
        self._next = None
        self._skip_empty()

    @property
    def at_epoch_start(self) -> bool:
        """Whether this rank has had no batch of the epoch."""
        past = self.plan.start - self.epoch_start
        return self.number == 0 and past < (self.plan.round_rows if self.plan.crossing else 1)

    @property
    def batches_per_epoch(self) -> int:
        """Batches of the whole current epoch; the number varies by one where batches cross epochs."""
        if not self.plan.crossing:
            return len(self.full_epoch)
        rows = self.plan.round_rows
        return -(-(self.n - (self.plan.start - self.epoch_start) % rows) // rows)

    @property
    def position(self) -> int:
        """Position at which all ranks stand: what a checkpoint holds."""
        return self.plan.resume_position(self.number)

    def _plan(self, start: int, stop: int) -> EpochPlan:
        each = self._shape
        return EpochPlan(
            start, stop, each.batch_size, each.drop_last, each.rank, each.world_size, self._uneven, self._short,
            self._crossing,
        )  # fmt: skip

    def _skip_empty(self) -> None:
        if self.number < self._count:
            return
        self.epoch_start += self.n
        start = self.plan.end if self.plan.crossing else self.epoch_start
        self.plan = self._plan(start, self.epoch_start + self.n)
        self._count = len(self.plan)
        self.number = 0


def _of(shard: Shard) -> str:
    return f" in each of num_shards = {shard.count}" if shard.count > 1 else ""
