"""The attachments in a log: what each one read, how far it got, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prepserver.audit.records import Attached, Bad, Job, Left, Progress, Record, Rows
from prepserver.pipeline.batches import BatchLine, BatchShape


@dataclass(slots=True)
class Stay:
    """One attachment of one rank."""

    rows: Rows  # what it read
    attached: Attached  # where it began
    told: int  # batches below this position were announced to it
    back: int  # batches below this position it has released
    left: Left | None = None  # how it ended; None while it lasts, or if its daemon was killed
    # rows that held a replacement, position to (index, reason)
    bad: dict[int, tuple[int, str]] = field(default_factory=dict)
    more_bad: bool = False  # whether the log lacks some of them

    def line(self) -> BatchLine:
        """Its batches, from the first on."""
        a = self.attached
        shape = BatchShape(a.batch_size, a.drop_last, a.rank, a.world_size, self.rows.shard, a.batching)
        return BatchLine(self.rows.n, shape, a.epoch_start, a.position, a.rounds)

    @property
    def first(self) -> int:
        """Where its first batch starts."""
        return self.line().peek().start

    def end(self, reported: int | None) -> int:
        """The training loop took the batches of this stay that start below this position.

        `reported` is the position that the rank gave when it came back; None if it did not.
        """
        if self.left is not None and self.left.at is not None:
            return min(self.left.at, self.told)
        # Its last messages may be lost, because the daemon or the rank was killed. So the position counts that the rank
        # reports when it comes back, if the daemon can have announced it; the log may be up to a ring behind.
        if reported is not None and self.back <= reported <= self.told + self.attached.ring:
            return reported
        return self.back


Key = tuple[str, str, int, int, str]


def key_of(rows: Rows) -> Key:
    """What all stays of one training have in common: listing, order, seed and pipeline.

    The shard is not part of it: a training may continue from a checkpoint with other shards.
    """
    return rows.digest, rows.shuffle, rows.seed, rows.batch_rows, json.dumps(rows.pipeline, sort_keys=True)


def chains(files: Sequence[list[tuple[int, Record]]]) -> tuple[list[list[Stay]], list[str]]:
    """The stays of a job in chains, one for each training, and an error for each record that contradicts others.

    `files` has records with their line numbers, the oldest file first; chains are in the order of the log. Two clients
    of one process may share a job's name, for training and validation: they read different rows, or exist at the same
    time. A restarted script attaches a rank again with epoch 0 and without a checkpoint.
    """
    found: list[tuple[Key, list[Stay]]] = []
    wrong: list[str] = []
    for records in files:
        wrong += _read(records, found)
    return [chain for _, chain in found], wrong


def _read(records: list[tuple[int, Record]], found: list[tuple[Key, list[Stay]]]) -> Iterator[str]:
    specs: dict[int, Rows] = {}
    stays: dict[int, Stay] = {}
    for number, record in records:
        match record:
            case Rows():
                specs[number] = record
            case Attached():
                stay = _stay(record, specs)
                if stay is None:
                    yield f"line {number + 1}: the positions of this attachment are inconsistent"
                    continue
                stays[number] = stay
                _chain_for(stay, found).append(stay)
            case Progress() | Left() | Bad():
                of = stays.get(record.of)
                if of is None:
                    yield f"line {number + 1}: its attachment is missing"
                else:
                    _note(of, record)
            case Job():
                pass


def _stay(attached: Attached, specs: dict[int, Rows]) -> Stay | None:
    rows = specs.get(attached.rows)
    if rows is None:
        return None
    stay = Stay(rows, attached, 0, 0)
    try:
        stay.told = stay.back = stay.first
    except ValueError:
        return None
    return stay


def _note(stay: Stay, record: Progress | Left | Bad) -> None:
    match record:
        case Progress():
            stay.told, stay.back = record.told, record.back
        case Left():
            stay.left = record
        case Bad():
            stay.bad |= {position: (index, reason) for position, index, reason in record.rows}
            stay.more_bad |= record.more


def _chain_for(stay: Stay, found: list[tuple[Key, list[Stay]]]) -> list[Stay]:
    """The chain that `stay` continues: the last that reached its position, else the last; a new one if none fits."""
    key = key_of(stay.rows)
    fit = [c for other, c in reversed(found) if other == key and (not _is_fresh(stay) or _is_joined(c, stay))]
    fit = [c for c in fit if not any(_at_once(earlier, stay) for earlier in c)]
    if fit:
        return max(fit, key=lambda c: (_came_to(c, stay), c[-1].rows.num_shards == stay.rows.num_shards))
    chain: list[Stay] = []
    found.append((key, chain))
    return chain


def _is_fresh(stay: Stay) -> bool:
    return stay.attached.epoch == 0 and not stay.attached.resumed


def _is_joined(chain: Sequence[Stay], stay: Stay) -> bool:
    """Whether a fresh stay is another rank (or shard) of a training that other ranks have begun.

    That training has not had this rank, and one of its ranks is attached, or may come back because its daemon ended.
    """
    return all(_who(earlier) != _who(stay) for earlier in chain) and any(
        _shape(earlier) == _shape(stay)
        and (earlier.left is None or (earlier.left.at is None and earlier.attached.daemon != stay.attached.daemon))
        for earlier in chain
    )


def _who(stay: Stay) -> tuple[int, int]:
    return stay.rows.shard_index, stay.attached.rank


def _shape(stay: Stay) -> tuple[object, ...]:
    return stay.rows.num_shards, stay.attached.world_size, stay.attached.local_ranks


def _came_to(chain: Sequence[Stay], stay: Stay) -> bool:
    """Whether a client of `chain` may have reached the position where `stay` begins."""
    now = stay.attached
    return any(
        earlier.rows.shard == stay.rows.shard
        and now.epoch_start - was.epoch_start == (now.epoch - was.epoch) * stay.rows.positions
        and was.position <= now.position <= earlier.told + was.ring
        for earlier in reversed(chain)
        for was in (earlier.attached,)
    )


def _at_once(earlier: Stay, stay: Stay) -> bool:
    """Whether the stays belong to two clients: attached at the same time, as one rank or with other shard counts."""
    return (
        earlier.left is None
        and earlier.attached.daemon == stay.attached.daemon
        and (earlier.rows.num_shards != stay.rows.num_shards or _who(earlier) == _who(stay))
    )
