"""The rows that a training took in each epoch: the stays of its ranks combined.

A training may stop, come back, or return to a checkpoint and take the rows after it again, so at each position the last
take counts. All positions are those of one shard; `prepserver.audit.training` combines several.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from prepserver.audit.records import Rows
from prepserver.audit.stays import Stay
from prepserver.pipeline.batches import Batch, Batching, BatchLine, EpochPlan

Run = tuple[int, int, int, int, bool, Batching]


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches [first, stop) of a plan, which were taken."""

    plan: EpochPlan
    first: int
    stop: int

    def runs(self) -> Iterator[tuple[int, int]]:
        """The positions of these batches."""
        if self.first >= self.stop:
            return
        if self.plan.world_size == 1:
            yield self.plan.batch(self.first).start, self.plan.batch(self.stop - 1).stop
            return
        for number in range(self.first, self.stop):
            batch = self.plan.batch(number)
            yield batch.start, batch.stop

    @property
    def end(self) -> int:
        """The position of all ranks after these batches."""
        return self.plan.resume_position(self.stop) if self.stop < len(self.plan) else self.plan.stop

    def below(self, position: int) -> Piece:
        """The batches that start below `position`."""
        return replace(self, stop=min(self.stop, _number_at(self.plan, position, self.first)))

    def __len__(self) -> int:
        """Rows."""
        return sum(stop - start for start, stop in self.runs())


@dataclass(slots=True)
class Epoch:
    """One epoch of a training."""

    rows: Rows  # what is read
    number: int  # number of the epoch, from 0
    start: int  # position at which it began
    plan: EpochPlan  # its batches, according to the last attachment; the `rank` in it has no meaning
    here: range  # the ranks that this daemon serves
    pieces: dict[int, list[Piece]] = field(default_factory=dict)  # what each rank took
    # for each rank, its last plan and the number of its next batch in that plan
    next_batches: dict[int, tuple[EpochPlan, int]] = field(default_factory=dict)
    # rows with a replacement: position to (index, reason)
    bad: dict[int, tuple[int, str]] = field(default_factory=dict)
    more_bad: bool = False  # whether the log lacks some of them
    by_word: int = 0  # rows that only the client reported as taken, because the daemon was killed before it logged them
    before: Epoch | None = None  # the previous epoch, if its last batches may reach into this one
    first: int = 0  # where the log begins to cover it; a checkpoint says that the rows before were taken
    until: int | None = None  # where these stays end and others continued from a checkpoint; None if none did

    @property
    def own(self) -> tuple[int, int]:
        """The run of positions that these stays account for."""
        return self.first, self.start + self.rows.positions if self.until is None else self.until

    @property
    def is_whole(self) -> bool:
        """Whether `own` is the whole epoch."""
        return self.own == (self.start, self.start + self.rows.positions)

    def taken(self) -> list[tuple[int, int]]:
        """Runs of positions, of all ranks."""
        return self._with_before(lambda e: (piece for pieces in e.pieces.values() for piece in pieces))

    def untaken(self) -> list[tuple[int, int]]:
        """What the ranks of this daemon have still to take: nothing if other stays continued."""
        return self._with_before(lambda e: map(e._left_of, e.here)) if self.until is None else []

    def _left_of(self, rank: int) -> Piece:
        plan, number = self.next_batches.get(rank, (replace(self.plan, rank=rank), 0))
        return Piece(plan, number, len(plan))

    def end_before(self, position: int) -> None:
        """Other stays continued at `position`, or where all ranks of these were if none had reached `position`."""
        taken = [[p for p in self.pieces.get(rank, []) if p.first < p.stop] for rank in self.here]
        ends = [max((p.end for p in pieces), default=0) for pieces in taken]
        self.until = position if max(ends) >= position else max(min(ends), self.plan.start)

    def elsewhere(self) -> list[tuple[int, int]]:
        """What ranks at other daemons take."""
        return self._with_before(Epoch._others)

    def _others(self) -> list[Piece]:
        ranks = (rank for rank in range(self.plan.world_size) if rank not in self.here)
        return [Piece(plan, 0, len(plan)) for plan in (replace(self.plan, rank=rank) for rank in ranks)]

    def left_out(self) -> list[tuple[int, int]]:
        """What `drop_last` leaves out."""
        plan = replace(self.plan, rank=self.plan.world_size - 1)
        end = plan.batch(len(plan) - 1).stop if len(plan) else plan.start
        return [(end, plan.stop)] if end < plan.stop else []

    def replaced(self) -> dict[int, tuple[int, str]]:
        """Rows with a replacement: position to (index, reason)."""
        return {**(self.before.bad if self.before is not None else {}), **self.bad}

    def _with_before(self, pieces_of: Callable[[Epoch], Iterable[Piece]]) -> list[tuple[int, int]]:
        """Runs of this epoch; if batches cross epochs, with those of the previous epoch's last batches."""
        runs = [run for piece in pieces_of(self) for run in piece.runs()]
        if not self.plan.crossing:
            return runs
        runs = _within(runs, self.start, self.plan.stop)
        if self.before is None:
            return runs
        plans = [piece.plan for pieces in self.pieces.values() for piece in pieces]
        first = min(plan.start for plan in [*plans, *(plan for plan, _ in self.next_batches.values()), self.plan])
        before = [run for piece in pieces_of(self.before) for run in piece.runs()]
        return runs + _within(before, self.start, first)

    def batches(self, rank: int) -> list[Batch]:
        """The batches of a rank: those that it took, in order, then those that it has still to take."""
        pieces = [*self.pieces.get(rank, []), *([self._left_of(rank)] if self.until is None else [])]
        return [piece.plan.batch(k) for piece in pieces for k in range(piece.first, piece.stop)]


class History:
    """The epochs of a training, from its stays in the order of the log, all with the same rows.

    The training continued with the `later` stays, perhaps with another shard: they take precedence.
    """

    def __init__(self, stays: Sequence[Stay], later: Sequence[Stay] = ()) -> None:
        self.rows = stays[-1].rows
        self._epochs: dict[int, Epoch] = {}
        self.again: Counter[int] = Counter()  # rows that were taken again, by number of the epoch
        self._there: dict[int, Stay] = {}  # each rank's last stay, not counted yet
        self._run: Run | None = None
        for stay in stays:
            self._enter(stay)
        for stay in later:
            self._give_way(stay)
        for rank in list(self._there):
            self._settle(rank, None)
        for epoch in self._epochs.values():
            before = self._epochs.get(epoch.number - 1)
            if before is not None and before.plan.crossing and before.plan.stop == epoch.start:
                epoch.before, epoch.first = before, epoch.start

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs by number."""
        return [self._epochs[number] for number in sorted(self._epochs)]

    def _enter(self, stay: Stay) -> None:
        a = stay.attached
        line = stay.line()
        is_next = self._run is not None and goes_on(self._run, stay)
        # A rank that joins the run of its siblings moves alone; a new run (after a checkpoint, or with other batches)
        # moves all ranks.
        ranks = [a.rank] if is_next else self._ranks()
        start, position = (line.epoch_start, line.peek().start) if is_next else (a.epoch_start, a.position)
        for rank in ranks:
            self._settle(rank, position if a.resumed else None)
        self._go_back(ranks, self._number(stay, start), start, position, for_all=not is_next)
        if not is_next:
            self._run = run_of(stay)
        self._there[a.rank] = stay
        epoch = self._epoch(stay, line)
        epoch.next_batches[a.rank] = (line.plan, line.number)
        if epoch.start == a.epoch_start:
            epoch.first = min(epoch.first, a.position)

    def _ranks(self) -> list[int]:
        return sorted({*self._there, *(rank for epoch in self._epochs.values() for rank in epoch.pieces)})

    def _give_way(self, stay: Stay) -> None:
        """The training continued with `stay`, not with the stays of this history."""
        number = stay.attached.epoch
        start, position = place_in(self.rows, stay)
        ranks = self._ranks()
        for rank in ranks:
            self._settle(rank, position if stay.attached.resumed and start is not None else None)
        self._go_back(ranks, number, -1 if start is None else start, position, for_all=True)
        before = self._epochs.get(number - 1)
        if start is not None and before is not None and before.plan.end > before.plan.stop == start < position:
            # its last round reaches into this epoch
            plan = replace(before.plan, start=before.plan.end, stop=start + self.rows.positions)
            self._epochs.setdefault(number, Epoch(self.rows, number, start, plan, before.here, first=start))
        epoch = self._epochs.get(number)
        if epoch is not None and (epoch.start != start or position <= epoch.first):
            del self._epochs[number]
        elif epoch is not None:
            epoch.end_before(position)
        last = max(self._epochs, default=number)
        if last < number and stay.attached.resumed:
            self._epochs[last].end_before(self._epochs[last].start + self.rows.positions)

    def _number(self, stay: Stay, epoch_start: int) -> int:
        return stay.attached.epoch + (epoch_start - stay.attached.epoch_start) // stay.rows.positions

    def _epoch(self, stay: Stay, line: BatchLine) -> Epoch:
        number = self._number(stay, line.epoch_start)
        local = stay.attached.local_ranks
        here = range(line.plan.world_size) if local is None else range(local[0], sum(local))
        epoch = self._epochs.get(number)
        if epoch is None or epoch.start != line.epoch_start:
            first = line.plan.start if line.epoch_start == stay.attached.epoch_start else line.epoch_start
            epoch = self._epochs[number] = Epoch(self.rows, number, line.epoch_start, line.plan, here, first=first)
        epoch.plan, epoch.here = line.plan, here
        return epoch

    def _settle(self, rank: int, reported: int | None) -> None:
        """Counts what the last stay of `rank` took; `reported` is the position that the rank gave when it came back."""
        stay = self._there.pop(rank, None)
        if stay is None:
            return
        end = stay.end(reported)
        line = stay.line()
        while line.peek().start < end:
            plan, first = line.plan, line.number
            piece = Piece(plan, first, _number_at(plan, end, first))
            epoch = self._epoch(stay, line)
            epoch.pieces.setdefault(rank, []).append(piece)
            epoch.next_batches[rank] = (plan, piece.stop)
            epoch.by_word += len(piece) - len(piece.below(stay.told))
            rows = range(plan.start, plan.end)
            epoch.bad |= {p: why for p, why in stay.bad.items() if p in rows}
            epoch.more_bad |= stay.more_bad
            line.number = piece.stop - 1
            line.advance()

    def _go_back(self, ranks: Iterable[int], number: int, start: int, position: int, *, for_all: bool) -> None:
        """The training takes again what `ranks` took at or after `position` of epoch `number`."""
        for epoch in self.epochs:
            if epoch.number < number:
                continue
            moved = epoch.start != start  # the same epoch began again at another position
            for rank in ranks:
                before = epoch.pieces.pop(rank, [])
                epoch.next_batches.pop(rank, None)
                kept = [] if epoch.number > number or moved else [piece.below(position) for piece in before]
                if kept:
                    epoch.pieces[rank] = kept
                self.again[epoch.number] += sum(map(len, before)) - sum(map(len, kept))
            if epoch.number > number and not any(epoch.pieces.values()) and not epoch.next_batches:
                del self._epochs[epoch.number]
            if for_all:
                epoch.bad = {p: why for p, why in epoch.bad.items() if p < position}


def place_in(rows: Rows, stay: Stay) -> tuple[int | None, int]:
    """(epoch_start, position) where `stay`, perhaps of another shard, began, as positions of the shard of `rows`.

    An epoch that began inside a pass has no start in a shard: then None, and the position has no meaning.
    """
    a = stay.attached
    if stay.rows.shard == rows.shard:
        return a.epoch_start, a.position
    pass_, inside = divmod(stay.rows.shard.to_all(a.epoch_start, rows.n), rows.n)
    if inside and rows.num_shards > 1:
        return None, 0
    start = pass_ * rows.positions + inside
    taken = (a.position - a.epoch_start) * stay.rows.num_shards
    return start, start + max(0, -(-(taken - rows.shard_index) // rows.num_shards))


def goes_on(run: Run, stay: Stay) -> bool:
    """Whether the batches of `stay` are those of `run`, perhaps epochs later."""
    epoch_start, position, *shape = run_of(stay)
    first_start, first_position, *first_shape = run
    later = epoch_start - first_start
    if shape != first_shape:
        return False
    if (epoch_start, position) == (first_start, first_position):
        return True
    if later <= 0 or later % stay.rows.positions:
        return False
    a = stay.attached
    if a.batching == "shuffle-repeat-batch":
        return (position - first_position) % (a.batch_size * a.world_size) == 0
    return position == epoch_start


def run_of(stay: Stay) -> Run:
    """Where the batches of `stay` begin, and what they are."""
    a = stay.attached
    return a.epoch_start, a.position, a.batch_size, a.world_size, a.drop_last, a.batching


def _within(runs: Iterable[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """The parts of `runs` in [start, stop)."""
    return [(max(a, start), min(b, stop)) for a, b in runs if max(a, start) < min(b, stop)]


def _number_at(plan: EpochPlan, position: int, low: int) -> int:
    """Number of the first batch, from `low` on, that starts at or after `position`."""
    return bisect_left(range(len(plan)), position, lo=min(low, len(plan)), key=lambda number: plan.batch(number).start)
