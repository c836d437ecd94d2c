"""The lines of a job's log: their content and their format.

A line is ``NUMBER JSON CHECKSUM``. Numbers count from 0 and reveal a lost line; the CRC-32 of the rest reveals a
changed one. Both find accidents, not forgeries. Lines are appended and never changed, except `Progress`: each
attachment has one line of fixed width that is rewritten in place, so that a week of batches takes 128 bytes.
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
PROGRESS_BYTES = 128  # width of a `Progress` line with its newline: room for three numbers of 19 digits

MAX_BAD_ROWS = 64  # in one record
MAX_REASON_CHARS = 512


@dataclass(frozen=True, slots=True)
class Job:
    """First line of a file: the version of this format, the job's name as its client gives it, and its user."""

    version: Small
    job: Word
    uid: Count


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that attachments read; an attachment refers to this line by its number."""

    source: Tree  # wire form of the dataset
    digest: Word  # digest of its listing
    index: Path  # path of the listing, which never changes
    n: Count  # samples of the source
    shuffle: Shuffle  # the order
    seed: Seed  # seed of order and augmentation
    pipeline: Trees  # wire form
    num_shards: Shards = 1  # shards of each pass
    shard_index: Count = 0  # the job's shard; positions count along that shard only
    batch_rows: Count = 0  # rows of the batches that are shuffled as a whole; 0 if single samples are shuffled

    @property
    def shard(self) -> Shard:
        """The job's shard."""
        return Shard(self.num_shards, self.shard_index)

    @property
    def positions(self) -> int:
        """Positions of an epoch of the job's shard."""
        return self.shard.positions(self.n)


@dataclass(frozen=True, slots=True)
class Attached:
    """A rank of the job attached. Its batches follow from these numbers: see `pipeline.batches.BatchLine`."""

    rows: Count  # number of the `Rows` line that it reads
    daemon: Word  # Names one run of the daemon. Only attachments of the same run can exist at once.
    time: Word  # when, UTC
    rank: Small  # its rank
    world_size: Small  # ranks of the job
    batch_size: Annotated[int, Range(1, 2**20)]  # rows of a full batch
    drop_last: bool  # whether rows that do not fill a round are left out
    epoch: Count  # number of the epoch that begins at `epoch_start`
    epoch_start: Position  # position at which that epoch begins
    position: Position  # position in that epoch at which the run of batches begins
    rounds: Count  # batches of that run that this rank took before
    ring: Count  # rows of its ring: the daemon announces at most this many beyond what the rank has released
    resumed: bool  # the rank named its position (a checkpoint, or a lost connection), so everything before was taken
    local_ranks: tuple[Small, Small] | None = None  # (first, count) of the ranks that this daemon serves, None for all
    batching: Batching = "shuffle-batch-repeat"  # whether its batches cross the ends of epochs


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of attachment `of`: batches below `told` were announced to it, it has released those below `back`."""

    of: Count
    told: Position
    back: Position


@dataclass(frozen=True, slots=True)
class Left:
    """Attachment `of` ended; `at` is the start of the first batch that its training loop did not take.

    None if the client did not report it: it was killed, or the connection broke.
    """

    of: Count
    time: Word
    at: Position | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """Rows of attachment `of` that hold a replacement: (position, index of the sample that was expected, reason).

    `more` means that there were others, for which the log has no room.
    """

    of: Count
    rows: Annotated[list[tuple[Position, Count, Annotated[str, Size(MAX_REASON_CHARS)]]], Size(MAX_BAD_ROWS)]
    more: bool = False


Record = Job | Rows | Attached | Progress | Left | Bad

_KINDS: dict[str, type[Record]] = {
    "job": Job, "rows": Rows, "attached": Attached, "at": Progress, "left": Left, "bad": Bad,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _KINDS.items()}


class BrokenLine(ValueError):
    """The daemon did not write this line."""


def to_line(number: int, record: Record) -> bytes:
    """The line of `record`, with its newline."""
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    text = json.dumps({"k": _NAMES[type(record)], **fields}, separators=(",", ":"), allow_nan=False)
    head = f"{number} {text}"
    if isinstance(record, Progress):
        head = head.ljust(PROGRESS_BYTES - 10)
    return f"{head} {zlib.crc32(head.encode()):08x}\n".encode()


def from_line(number: int, line: bytes) -> Record:
    """The record in line `number` (without its newline); `BrokenLine` if checksum, number or a field is wrong."""
    head, _, checksum = line.rpartition(b" ")
    if checksum != b"%08x" % zlib.crc32(head):
        raise BrokenLine("its checksum is wrong: it was changed, or not written to the end")
    said, _, text = head.partition(b" ")
    if said != b"%d" % number:
        raise BrokenLine(f"its number is {said[:20].decode(errors='replace')}: lines are missing before it")
    try:
        fields: Any = json.loads(text)
        kind = _KINDS[fields.pop("k")]
        return build(kind, fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        what = str(e) if isinstance(e, ProtocolError) else f"{type(e).__name__}: {e}"
        raise BrokenLine(f"not a record: {what}"[:300]) from e


def parse(data: bytes) -> tuple[list[tuple[int, Record]], list[str]]:
    """All records of a file with their line numbers, and an error for each line that holds none."""
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
