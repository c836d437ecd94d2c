"""The messages between the daemon and its zygote, workers and indexers, each on a SEQPACKET pair of its own.

A task names positions, never bytes: the worker computes sample indices, random numbers and rows from the specs that it
received once. So the same task gives the same bytes in any worker, any number of times.
"""

from __future__ import annotations

import hashlib
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
)  # fmt: skip

MAX_CHUNK_ROWS = 1024
"""Most rows of one `Fill`: so many bad rows with their reasons fit into one message."""

MAX_REASON_CHARS = 512

MAX_LANES = 64
"""Most lanes of a stream: one `Fill` names them all."""

MAX_ROOTS = 32  # they fit into one message

Indices = Annotated[list[Count], Size(4096)]
MAX_OPS_NS = 256
"""Most op times in one `Filled`; with more (many lanes of long pipelines) a worker sends none."""

Lanes = Annotated[list[Small], Size(MAX_LANES)]
BadRow = tuple[Position, Count, Annotated[str, Size(MAX_REASON_CHARS)], Lanes]
Kind = Literal["worker", "indexer"]
Roots = Annotated[list[Path], Size(MAX_ROOTS)]
Plugins = Annotated[list[tuple[Literal["op", "source"], Word, Word, Word]], Size(64)]
Files = Annotated[list[Path], Size(64)]
Words = Annotated[list[Word], Size(64)]
Places = Annotated[list[Path], Size(256)]

EXIT_SEALED = 75  # sysexits.h: EX_TEMPFAIL
"""Exit status of a worker whose sandbox does not let it read a stream; its replacement can."""


@dataclass(frozen=True, slots=True)
class AddStream:
    """From now on `stream` means this source in this order.

    Attributes:
        quarantined: Indices of samples that killed workers.
        roots: Folders that must hold every file that is read; empty for no such rule.
        num_shards: Shards of each pass.
        shard_index: The shard of this stream.
        batch_rows: Rows of the batches that are shuffled as a whole; 0 if single samples are shuffled.
        places: Folders that hold every file that is opened for this stream.
        listing: See `Indexed.key`; empty for a stream that no cache serves.
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
    listing: Word = ""


@dataclass(frozen=True, slots=True)
class AddCache:
    """Workers keep samples of `listing` in this cache, whose descriptor comes with this message.

    Attributes:
        cache: Its number.
        listing: `Indexed.key` of the streams whose samples it holds.
        head: Digest of the head of the pipelines whose images it holds; empty for samples as they are stored.
        samples: See `prepserver.cache.store.Shape`.
        extent_bytes: See `prepserver.cache.store.Shape`.
        is_file: Whether it is a file on disk.
    """

    cache: Small
    listing: Word
    head: Word
    samples: Count
    extent_bytes: Small
    is_file: bool


@dataclass(frozen=True, slots=True)
class DropCache:
    """Unmap `cache`."""

    cache: Small


@dataclass(frozen=True, slots=True)
class Quarantine:
    """These samples of `stream` killed workers and are bad, without being read; with `lane`, only for that lane."""

    stream: Small
    indices: Indices
    lane: Small | None = None


@dataclass(frozen=True, slots=True)
class AddLane:
    """A pipeline of `stream`, its ring (this message brings the descriptor), and samples that kill workers in it."""

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
    """Forget `stream`, whose lanes were dropped before."""

    stream: Small


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill the rows of positions [position, position + count) in each of `lanes` (all of `stream`).

    Attributes:
        alone: Make each row by itself: a worker died in these, and the sample in hand is to be found.
    """

    task: Count
    stream: Small
    lanes: Lanes
    position: Position
    count: Annotated[int, Range(1, MAX_CHUNK_ROWS)]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Filled:
    """`task` is done: its rows are in the ring.

    Attributes:
        bad: (position, sample index, reason, lanes) of rows that hold a replacement, or zeros if none was found.
            `lanes` names the lanes whose pipelines refused the sample; empty means all lanes of the task, the usual
            case (a file that cannot be read).
        read_ns: Time for reading encoded bytes.
        make_ns: Time for decode and augmentation.
        shared_ns: CPU time spent for all lanes together; 0 for a task of one lane.
        lanes_ns: CPU time of rendering for each lane; empty for a task of one lane.
        ops_ns: Time in each op of each lane, one after the other; part of `make_ns`. Empty if they are too many.
        at_ns: When the worker sent it (`time.monotonic_ns`); 0 if it did not say.
        began_ns: When the worker began with it; 0 if it did not say.
    """

    task: Count
    bad: Annotated[list[BadRow], Size(MAX_CHUNK_ROWS * 4)]
    read_ns: Nanoseconds
    make_ns: Nanoseconds
    shared_ns: Nanoseconds = 0
    lanes_ns: Annotated[list[Nanoseconds], Size(MAX_LANES)] = field(default_factory=list)
    ops_ns: Annotated[list[Nanoseconds], Size(MAX_OPS_NS)] = field(default_factory=list)
    at_ns: Nanoseconds = 0
    began_ns: Nanoseconds = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """`task` failed (a source that vanished, a bug); `reason` is for log and jobs, `lane` to blame unless None.

    Attributes:
        final: Trying again is of no use.
    """

    task: Count
    reason: Text
    lane: Small | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class BuildIndex:
    """List `source` and leave its index in `cache_dir`: the only request to an indexer.

    Attributes:
        roots: Folders that should hold the source; empty for no such rule.
        roots_only: Whether a source elsewhere is refused; else it is indexed without the rule.
        files: Files that the ops of a pipeline read; the same rules hold for them.
        one_by_one: Whether an indexer died of this: then the next one tells which file it begins.
    """

    source: Tree
    cache_dir: Path
    roots: Roots = field(default_factory=list)
    roots_only: bool = True
    files: Files = field(default_factory=list)
    one_by_one: bool = False


@dataclass(frozen=True, slots=True)
class Indexing:
    """The indexer has found `samples` so far, and begins the file `at`, if it tells that."""

    samples: Count
    at: Text = ""


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index is at `path`; the indexer ends. See `prepserver.source.IndexInfo`, and `AddStream` for `places`.

    Attributes:
        roots: The requested folders that hold the dataset; its readers must check that every file is in them.
        files: Digests of the content of the requested files; `places` covers them.
    """

    path: Path
    samples: Count
    num_classes: Count
    digest: Word
    content_digest: Word
    roots: Roots = field(default_factory=list)
    places: Places = field(default_factory=list)
    files: Words = field(default_factory=list)

    @property
    def key(self) -> str:
        """Names what is read, and by whose rules: equal keys mean equal samples for all users who may read them."""
        return hashlib.sha256(f"{self.digest} {self.roots}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class IndexFailed:
    """The source cannot be listed; `reason` is for its owner."""

    reason: Text


@dataclass(frozen=True, slots=True)
class Spawn:
    """Fork a child of `kind`; its end of a socket pair and its statistics page come with this message.

    Only one child ever has this `ticket`; the next worker in the same place has the same `number`.
    """

    ticket: Count
    number: Small
    kind: Kind


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote has imported everything and forks from now on.

    Attributes:
        pid: The zygote's.
        kernels: What makes rows, ``native`` or ``pure``.
        why: The reason, in words.
        sandbox: Parts of the sandbox that its children have, in words.
        unconfined: Missing parts and the reason; empty if none is missing.
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
    """The child of `ticket` runs; its pidfd comes with this message.

    Attributes:
        host: The machine of a remote worker, whose bridge sends a pipe for a pidfd; empty on this machine.
    """

    ticket: Count
    pid: Small
    host: Word = ""


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The kernel refused to fork the child of `ticket`."""

    ticket: Count
    reason: Text


@dataclass(frozen=True, slots=True)
class Exited:
    """The child of `ticket` ended and was reaped; `status` is its exit status, or minus the signal that ended it."""

    ticket: Count
    pid: Small
    status: int


TO_WORKER = registry(AddStream, AddCache, DropCache, Quarantine, AddLane, DropLane, DropStream, Fill)
FROM_WORKER = registry(Filled, Failed)
TO_INDEXER = registry(BuildIndex)
FROM_INDEXER = registry(Indexing, Indexed, IndexFailed)
TO_ZYGOTE = registry(Spawn)
FROM_ZYGOTE = registry(Ready, Spawned, SpawnFailed, Exited)
