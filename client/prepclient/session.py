"""The state of one attachment: the next batch, the rows that are ready, and the rows to release. Pure.

The daemon computes batches with the same `prepserver.pipeline.batches`, so an announcement is a single number.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from prepserver.pipeline.batches import Batch, BatchLine, BatchShape


@dataclass(frozen=True, slots=True)
class Bad:
    """A row whose sample could not be made, and which holds another one in its place."""

    position: int
    index: int
    reason: str


class Totals(NamedTuple):
    """What the training loop has received over all attachments."""

    batches: int = 0
    images: int = 0  # rows in them
    bad: int = 0  # rows among them that hold a replacement
    wait_ns: int = 0  # time during which missing rows held up the loop
    copy_ns: int = 0  # time during which the copying of ready rows held it up
    own_ns: int = 0  # the loop's own time between two batches of an epoch

    def since(self, first: Totals) -> Totals:
        """What the loop has received since `first`."""
        return Totals(*(now - was for now, was in zip(self, first, strict=True)))


class Handed(NamedTuple):
    """Progress of the training loop. A step replaces the whole object, so it happens entirely or not at all."""

    line: BatchLine  # the line at the next batch; never advanced in place
    totals: Totals  # what the training loop received before that batch


class Session:
    """The next batch, the rows that are ready, and the rows to release, of one attachment.

    It begins at `position`, in the epoch with the number `epoch`, which began at `epoch_start`; from there on this rank
    has already taken `rounds` batches. `totals` are those of earlier attachments.

    It keeps two positions in the sequence of batches. Those below `_ahead` were picked up: copied, being copied, or
    lent. Those below `handed` were received by the training loop; checkpoints hold this position. There are more than
    15 public members because most of them are one number of that sequence.
    """

    def __init__(
        self, samples: int, epoch: int, epoch_start: int, position: int, shape: BatchShape, rounds: int = 0,
        totals: Totals = Totals(),  # noqa: B008 - immutable
    ) -> None:  # fmt: skip
        line = samples, shape, epoch_start, position, rounds
        self.samples = samples
        self._shard = shape.shard
        self._is_alone = shape.world_size * shape.shard.count == 1
        self.ready_upto = position
        self._ahead = BatchLine(*line)
        # Progress of the training loop. The code that hands out a batch replaces it.
        self.handed = Handed(BatchLine(*line), totals)
        # Progress before and after the last batch that was refused for a bad sample.
        self.refused: tuple[Handed, Handed] | None = None
        self._first_epoch_start = epoch_start
        self._first_epoch = epoch
        self._picked_up: list[Batch] = []
        # by start of each batch that was picked up, in stream order: whether it was given back
        self._held: dict[int, bool] = {}
        self._bad: dict[int, Bad] = {}
        self.released_upto = self._ahead.peek().start

    # -- announcements ------------------------------------------------------------------------------

    def ready(self, upto: int, bad: Iterable[tuple[int, int, str]]) -> None:
        """Notes that all rows below `upto` are in the ring. Repeated and late announcements change nothing."""
        self.ready_upto = max(self.ready_upto, upto)
        for position, index, reason in bad:
            if position >= self.released_upto:
                self._bad[position] = Bad(position, index, reason)

    # -- picking rows up ----------------------------------------------------------------------------

    def next_ready(self) -> Batch | None:
        """The next batch to pick up; None until its rows are ready."""
        batch = self._ahead.peek()
        return batch if batch.stop <= self.ready_upto else None

    @property
    def upcoming(self) -> Batch:
        """The next batch to pick up, ready or not."""
        return self._ahead.peek()

    def pick_up(self) -> Batch:
        """Picks up the batch of `next_ready`, and holds its rows until `give_back`."""
        batch = self._ahead.peek()
        self._ahead.advance()
        self._picked_up.append(batch)
        self._held[batch.start] = False
        return batch

    def give_back(self, start: int) -> bool:
        """Gives back the rows of the batch that starts at `start`.

        Batches may be given back in any order; their rows are released in stream order.

        Returns:
            Whether `released_upto` has moved, so that the daemon should be told.
        """
        self._held[start] = True
        before = self.released_upto
        for key in list(self._held):
            if not self._held[key]:
                break
            del self._held[key]
        self.released_upto = next(iter(self._held), self._ahead.peek().start)
        if self._bad:
            for position in [p for p in self._bad if p < min(self.released_upto, self.stands)]:
                del self._bad[position]
        return self.released_upto > before

    # -- handing out --------------------------------------------------------------------------------

    def offer(self) -> tuple[Batch, list[Bad], BatchLine]:
        """The oldest batch that was picked up, its replaced rows, and the line after it, for the next `handed`."""
        batch = self._picked_up.pop(0)
        line = copy.copy(self.line)
        line.advance()
        return batch, self.bad_of(batch), line

    def bad_of(self, batch: Batch) -> list[Bad]:
        """The replaced rows of a batch that is ready."""
        return [self._bad[p] for p in sorted(self._bad) if batch.start <= p < batch.stop] if self._bad else []

    def to_save(self) -> Session:
        """The session whose place a checkpoint holds: at a batch that was just refused, which nobody has trained on.

        Of several ranks, others have trained on theirs of the same step, so all keep the place after it.
        """
        if self.refused is None or self.refused[1] is not self.handed or not self._is_alone:
            return self
        earlier = copy.copy(self)
        earlier.handed, _ = self.refused
        return earlier

    @property
    def line(self) -> BatchLine:
        """The line at the training loop's next batch."""
        return self.handed.line

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch belongs to."""
        return self._first_epoch + (self.line.epoch_start - self._first_epoch_start) // self.line.n

    @property
    def epoch_start(self) -> int:
        """Position at which the next batch's epoch began, over all shards."""
        return self._of_all(self.line.epoch_start)

    @property
    def position(self) -> int:
        """Position of all ranks of all shards together, as a checkpoint holds it."""
        return self._of_all(self.line.position)

    @property
    def place(self) -> tuple[int, int, int]:
        """This rank's exact place: (epoch_start, start of its run of batches, number of these it has taken)."""
        return self.epoch_start, self._of_all(self.line.plan.start), self.line.number

    def _of_all(self, position: int) -> int:
        return self._shard.to_all(position, self.samples)

    @property
    def stands(self) -> int:
        """Position at which the training loop's next batch starts."""
        return self.line.peek().start

    @property
    def batches_left(self) -> int:
        """Number of batches until the end of the epoch."""
        return len(self.line.plan) - self.line.number
