"""What the daemon says to the processes that work for it, and they to it: one SEQPACKET pair each.

Three lines: daemon and zygote (make me a child, it ended), daemon and worker (fill these rows), daemon and
indexer (scan this source).

A task names positions, never bytes: the worker computes sample indices, random numbers and rows from the
specs that it was given once. So the same task gives the same bytes in any worker, any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from prepserver.protocol.codec import registry
from prepserver.protocol.schema import (
    Count,
    Nanoseconds,
    Path,
    Position,
    Range,
    Seed,
    Shards,
    Size,
    Small,
    Text,
    Tree,
    Trees,
    Word,
)

MAX_CHUNK_ROWS = 1024
"""Of one `Fill`: so many bad rows with their reasons still fit one message."""

MAX_REASON_CHARS = 512

MAX_ROOTS = 32
"""So many source roots fit one message."""

Indices = Annotated[list[Count], Size(4096)]
Lanes = Annotated[list[Small], Size(64)]
BadRow = tuple[Position, Count, Annotated[str, Size(MAX_REASON_CHARS)], Lanes]
Kind = Literal["worker", "indexer"]
Roots = Annotated[list[Path], Size(MAX_ROOTS)]
Plugins = Annotated[list[tuple[Literal["op", "source"], Word, Word, Word]], Size(64)]
Places = Annotated[list[Path], Size(256)]

EXIT_SEALED = 75  # sysexits.h: EX_TEMPFAIL
"""A worker ends with this status when it is to read what its sandbox keeps from it: the next one may."""


@dataclass(frozen=True, slots=True)
class AddStream:
    """From now on `stream` means this source in this order.

    Attributes:
        quarantined: Indices of samples that killed workers.
        roots: Below which every file must lie that is read; empty for no such rule.
        num_shards: Parts of each pass;
        shard_index: which of them it is.
        batch_rows: Rows of the batches that are shuffled as a whole, 0 where samples are.
        places: Folders below which all lies that is opened for this stream. What a plug-in may read beyond its
            dataset would be added here.
    """

    stream: Small
    source: Tree
    index_path: Path
    shuffle: Literal["none", "full", "cyclic"]
    seed: Seed
    quarantined: Indices = field(default_factory=list)
    roots: Roots = field(default_factory=list)
    num_shards: Shards = 1
    shard_index: Count = 0
    batch_rows: Count = 0
    places: Places = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """These samples killed workers; `stream` must treat them as bad without reading them.

    Attributes:
        lane: The only lane of it for which they are bad: its pipeline is to blame. None for all.
    """

    stream: Small
    indices: Indices
    lane: Small | None = None


@dataclass(frozen=True, slots=True)
class AddLane:
    """A pipeline of `stream` and its ring; the segment's descriptor comes with this message.

    Attributes:
        quarantined: Indices of samples that killed workers in this pipeline.
    """

    lane: Small
    stream: Small
    pipeline: Trees
    layout: Tree
    quarantined: Indices = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DropLane:
    """Unmap the ring of `lane`."""

    lane: Small


@dataclass(frozen=True, slots=True)
class DropStream:
    """Forget `stream`; its lanes are gone already."""

    stream: Small


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill the rows of positions [position, position + count) in each of `lanes` (all of `stream`)."""

    task: Count
    stream: Small
    lanes: Lanes
    position: Position
    count: Annotated[int, Range(1, MAX_CHUNK_ROWS)]


@dataclass(frozen=True, slots=True)
class Filled:
    """`task` is done: its rows are in the ring.

    Attributes:
        bad: (position, sample index, reason, lanes) of rows that hold a replacement, or zeros where none was
            found. `lanes` is empty for all lanes of the task, the usual case (a file that cannot be read);
            else it names those whose pipeline refused the sample while others took it, which keep it: what
            one lane refuses never changes another lane's rows.
        read_ns: Time in reading encoded bytes.
        make_ns: Time in decode and augmentation.
        shared_ns: CPU time in which nothing was rendered for a lane. 0 for a task of one lane.
        lanes_ns: CPU time in rendering, for each lane of the task. Empty for a task of one lane.
    """

    task: Count
    bad: Annotated[list[BadRow], Size(MAX_CHUNK_ROWS * 4)]
    read_ns: Nanoseconds
    make_ns: Nanoseconds
    shared_ns: Nanoseconds = 0
    lanes_ns: Annotated[list[Nanoseconds], Size(64)] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failed:
    """`task` could not be run (a source that vanished, a bug); `reason` goes to log and jobs.

    Attributes:
        lane: The lane that is to blame; None where it is none of them.
    """

    task: Count
    reason: Text
    lane: Small | None = None


@dataclass(frozen=True, slots=True)
class BuildIndex:
    """Scan `source` and leave its index in `cache_dir`: an indexer's one job.

    Attributes:
        roots: Below which it should lie; empty for no such rule.
        roots_only: Whether one that does not is refused, or indexed without the rule.
    """

    source: Tree
    cache_dir: Path
    roots: Roots = field(default_factory=list)
    roots_only: bool = True


@dataclass(frozen=True, slots=True)
class Indexing:
    """How many samples were found so far."""

    samples: Count


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index lies at `path`; the indexer is done and ends. See `prepserver.source.IndexInfo`.

    Attributes:
        roots: Below which the dataset lies, if that was asked; whoever reads it must keep to them.
        places: See `AddStream`.
    """

    path: Path
    samples: Count
    num_classes: Count
    digest: Word
    content_digest: Word
    roots: Roots = field(default_factory=list)
    places: Places = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class IndexFailed:
    """There is no index: `reason` is for the person whose dataset it is."""

    reason: Text


@dataclass(frozen=True, slots=True)
class Spawn:
    """Fork a child of `kind`; its end of a socket pair and its statistics page come with this message.

    Attributes:
        ticket: Names this child for ever; `number` is used again by the next worker in its place.
    """

    ticket: Count
    number: Small
    kind: Kind


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote has imported everything and forks from now on.

    Attributes:
        pid: Its own.
        kernels: ``native`` or ``pure``: which path makes rows.
        why: In words.
        sandbox: Parts of the sandbox that its children have, in words.
        unconfined: Parts that they should have and do not, and why; empty if there are none.
        plugins: Role, name, digest of the code and origin of each plug-in that it has loaded.
        broken: Why it has not loaded all that it was to load; empty if it has.
    """

    pid: Small
    kernels: Word = "pure"
    why: Text = ""
    sandbox: Word = "none"
    unconfined: Text = ""
    plugins: Plugins = field(default_factory=list)
    broken: Text = ""


@dataclass(frozen=True, slots=True)
class Spawned:
    """The child of `ticket` runs; its pidfd comes with this message."""

    ticket: Count
    pid: Small


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """No child for `ticket`: the kernel refused."""

    ticket: Count
    reason: Text


@dataclass(frozen=True, slots=True)
class Exited:
    """The child of `ticket` ended and was reaped.

    Attributes:
        status: Its exit status, or the negative number of the signal that ended it.
    """

    ticket: Count
    pid: Small
    status: int


TO_WORKER = registry(AddStream, Quarantine, AddLane, DropLane, DropStream, Fill)
FROM_WORKER = registry(Filled, Failed)
TO_INDEXER = registry(BuildIndex)
FROM_INDEXER = registry(Indexing, Indexed, IndexFailed)
TO_ZYGOTE = registry(Spawn)
FROM_ZYGOTE = registry(Ready, Spawned, SpawnFailed, Exited)
