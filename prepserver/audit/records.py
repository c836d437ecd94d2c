"""The lines of a job's log: what they say, and how they are spelled.

A line is ``NUMBER JSON CHECKSUM``: numbered from 0, so that a lost line is seen, with the CRC-32 of what stands before
it, so that a changed one is. That finds accidents and careless hands, not a forger: nothing here is secret. Lines are
only ever appended, but for `Progress`: each attachment has one line of fixed width, rewritten in place, so that a week
of batches takes 128 bytes.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from dataclasses import dataclass
from typing import Annotated, Any

from prepserver.pipeline.shard import Shard
from prepserver.protocol.messages import Batching, Shuffle
from prepserver.protocol.schema import (
    Count,
    Path,
    Position,
    ProtocolError,
    Range,
    Seed,
    Shards,
    Size,
    Small,
    Tree,
    Trees,
    Word,
    build,
)

VERSION = 1
PROGRESS_BYTES = 128
"""Width of a `Progress` line with its newline: room for three numbers of 19 digits."""

MAX_BAD_ROWS = 64  # in one record
MAX_REASON_CHARS = 512


@dataclass(frozen=True, slots=True)
class Job:
    """First line of a file.

    Attributes:
        version: Of this format.
        job: The run's name, as its client gives it.
        uid: Whose.
    """

    version: Small
    job: Word
    uid: Count


@dataclass(frozen=True, slots=True)
class Rows:
    """What the rows of the attachments that name this line are made from.

    Attributes:
        source: Wire form of the dataset.
        digest: Of its listing.
        index: Path of the listing, which is never changed.
        n: Samples of the source.
        shuffle: The order.
        seed: Of order and augmentation.
        pipeline: Wire form.
        num_shards: Parts into which each pass is dealt;
        shard_index: which of them the job reads. Positions are of its own line.
        batch_rows: Rows of the batches that are shuffled as a whole, 0 where samples are.
    """

    source: Tree
    digest: Word
    index: Path
    n: Count
    shuffle: Shuffle
    seed: Seed
    pipeline: Trees
    num_shards: Shards = 1
    shard_index: Count = 0
    batch_rows: Count = 0

    @property
    def shard(self) -> Shard:
        """Which part of the samples."""
        return Shard(self.num_shards, self.shard_index)

    @property
    def positions(self) -> int:
        """Positions of an epoch."""
        return self.shard.positions(self.n)


@dataclass(frozen=True, slots=True)
class Attached:
    """A rank of the job got its place. Its batches follow from these numbers, see `pipeline.batches.BatchLine`.

    Attributes:
        rows: Line of the `Rows` that it reads.
        daemon: Names one run of the daemon: two attachments of one daemon may be there at once, of two cannot.
        time: When, UTC.
        rank: Of world_size.
        world_size: Ranks of the job.
        local_ranks: (first, count) of the ranks that this daemon serves, None for all.
        batch_size: Rows of a full batch.
        drop_last: Whether rows that fill no round are left out.
        epoch: Number of the epoch that begins at `epoch_start`.
        epoch_start: Position.
        position: Where the run of batches begins, in that epoch.
        rounds: Batches of that run that this rank had before.
        ring: Rows of its ring: it cannot be told of more than that beyond what it has given back.
        resumed: It said where it stands (a checkpoint, or after a lost connection), so all before was taken.
        batching: Whether its batches cross the ends of epochs.
    """

    rows: Count
    daemon: Word
    time: Word
    rank: Small
    world_size: Small
    batch_size: Annotated[int, Range(1, 2**20)]
    drop_last: bool
    epoch: Count
    epoch_start: Position
    position: Position
    rounds: Count
    ring: Count
    resumed: bool
    local_ranks: tuple[Small, Small] | None = None
    batching: Batching = "shuffle-batch-repeat"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an attachment stands: it was told of its batches below `told`, and has given back those below `back`."""

    of: Count
    told: Position
    back: Position


@dataclass(frozen=True, slots=True)
class Left:
    """The end of attachment `of`; `at` is the start of the first batch that its training loop did not take.

    None where the client did not say: it was killed, or the connection broke.
    """

    of: Count
    time: Word
    at: Position | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """Rows of attachment `of` that hold a replacement: (position, index of the sample that should be there, why).

    `more` says that there were others which are not written down, because the log is full of them.
    """

    of: Count
    rows: Annotated[list[tuple[Position, Count, Annotated[str, Size(MAX_REASON_CHARS)]]], Size(MAX_BAD_ROWS)]
    more: bool = False


Record = Job | Rows | Attached | Progress | Left | Bad

_KINDS: dict[str, type[Record]] = {
    "job": Job,
    "rows": Rows,
    "attached": Attached,
    "at": Progress,
    "left": Left,
    "bad": Bad,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class BrokenLine(ValueError):
    """A line that the daemon did not write like this."""


def to_line(number: int, record: Record) -> bytes:
    """The line of `record`, with its newline."""
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    text = json.dumps({"k": _NAMES[type(record)], **fields}, separators=(",", ":"), allow_nan=False)
    head = f"{number} {text}"
    if isinstance(record, Progress):
        head = head.ljust(PROGRESS_BYTES - 10)
    return f"{head} {zlib.crc32(head.encode()):08x}\n".encode()


def from_line(number: int, line: bytes) -> Record:
    """The record of line `number` (without its newline), every field checked.

    Raises:
        BrokenLine: The checksum, the number or a field is wrong.
    """
    head, _, checksum = line.rpartition(b" ")
    if checksum != b"%08x" % zlib.crc32(head):
        raise BrokenLine("its checksum does not fit: it was changed, or not written to the end")
    said, _, text = head.partition(b" ")
    if said != b"%d" % number:
        raise BrokenLine(f"it says that it is line {said[:20].decode(errors='replace')}: lines are missing before it")
    try:
        fields: Any = json.loads(text)
        kind = _KINDS[fields.pop("k")]
        return build(kind, fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        what = str(e) if isinstance(e, ProtocolError) else f"{type(e).__name__}: {e}"
        raise BrokenLine(f"not a record: {what}"[:300]) from e


def parse(data: bytes) -> tuple[list[tuple[int, Record]], list[str]]:
    """All records of a file with their line numbers, and what is wrong with the lines that gave none."""
    records: list[tuple[int, Record]] = []
    wrong: list[str] = []
    lines = data.split(b"\n")
    rest = lines.pop()
    for number, line in enumerate(lines):
        try:
            records.append((number, from_line(number, line)))
        except BrokenLine as e:
            wrong.append(f"line {number + 1}: {e}")
    if rest:
        wrong.append(f"line {len(lines) + 1}: it has no end")
    return records, wrong
