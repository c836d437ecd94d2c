"""The messages between the daemon and its zygote, workers and indexers; each process has its own SEQPACKET pair.

A task names positions, never bytes: the worker computes sample indices, random numbers and rows from the specs that it
received once. So the same task gives the same bytes in any worker, any number of times.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Literal

from prepserver.protocol.codec import registry
from prepserver.protocol.messages import Shuffle
from prepserver.protocol.schema import (
    ClassNames,
    Count,
    Nanoseconds,
    Path,
    Position,
    Range,
    Seconds,
    Seed,
    Shards,
    Size,
    Small,
    Text,
    Tree,
    Trees,
    Word,
)  # fmt: skip

MAX_CHUNK_ROWS = 1024  # most rows of one `Fill`: as many bad rows, with their reasons, fit into one message
MAX_REASON_CHARS = 512
MAX_LANES = 64  # most lanes of a stream: one `Fill` names them all
MAX_ROOTS = 32  # all fit into one message
MAX_PLUGINS = 64  # most plug-ins in one process

MAX_ROW_GROUPS = 2048
"""Most row groups of a source that the daemon tells apart: their ends and many class names fit into one message."""

MAX_OPS_NS = 256  # most op times in one `Filled`; with more (many lanes of long pipelines) a worker sends none

Indices = Annotated[list[Count], Size(4096)]
Lanes = Annotated[list[Small], Size(MAX_LANES)]
BadRow = tuple[Position, Count, Annotated[str, Size(MAX_REASON_CHARS)], Lanes]
Kind = Literal["worker", "indexer"]
Roots = Annotated[list[Path], Size(MAX_ROOTS)]
Plugins = Annotated[list[tuple[Literal["op", "source"], Word, Word, Word]], Size(MAX_PLUGINS)]
Files = Annotated[list[Path], Size(64)]
Words = Annotated[list[Word], Size(64)]
Places = Annotated[list[Path], Size(256)]
Texts = Annotated[list[Text], Size(2**14)]

EXIT_SEALED = 75  # sysexits.h: EX_TEMPFAIL
"""Exit status of a worker whose sandbox does not let it read a stream; the sandbox of its replacement will."""


@dataclass(frozen=True, slots=True)
class AddStream:
    """From now on `stream` means this source in this order."""

    stream: Small
    source: Tree
    index_path: Path
    shuffle: Shuffle
    seed: Seed
    quarantined: Indices = field(default_factory=list)  # indices of samples that killed workers
    roots: Roots = field(default_factory=list)  # folders that must hold every file that is read; empty for any folder
    num_shards: Shards = 1  # shards of each pass
    shard_index: Count = 0  # the shard of this stream
    batch_rows: Count = 0  # rows of the batches that are shuffled as a whole; 0 if single samples are shuffled
    places: Places = field(
        default_factory=list
    )  # folders of all files that are opened for this stream, for the sandbox
    listing: Word = ""  # see `Indexed.key`; empty for a stream that no cache serves


@dataclass(frozen=True, slots=True)
class AddCache:
    """Workers keep samples of `listing` in this cache, whose descriptor comes with this message."""

    cache: Small  # its number
    listing: Word  # `Indexed.key` of the streams whose samples it holds
    head: Word  # digest of the head of the pipelines whose images it holds; empty for samples as they are stored
    samples: Count  # see `prepserver.cache.store.Shape`
    extent_bytes: Small  # see `prepserver.cache.store.Shape`
    is_file: bool  # whether it is a file on disk


@dataclass(frozen=True, slots=True)
class DropCache:
    """Unmap `cache`."""

    cache: Small


@dataclass(frozen=True, slots=True)
class Quarantine:
    """These samples of `stream` killed workers: they are bad, and not tried again. With `lane`, only for that lane."""

    stream: Small
    indices: Indices
    lane: Small | None = None


@dataclass(frozen=True, slots=True)
class AddLane:
    """A pipeline of `stream` and its ring, whose descriptor comes with this message."""

    lane: Small
    stream: Small
    pipeline: Trees
    layout: Tree
    quarantined: Indices = field(default_factory=list)  # indices of samples that killed workers in this pipeline


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
    """Fill the rows of positions [position, position + count) in each of `lanes` (all of `stream`)."""

    task: Count
    stream: Small
    lanes: Lanes
    position: Position
    count: Annotated[int, Range(1, MAX_CHUNK_ROWS)]
    alone: bool = False  # make each row by itself: a worker died in one of them, and this shows in which


@dataclass(frozen=True, slots=True)
class Filled:
    """`task` is done: its rows are in the ring."""

    task: Count
    # (position, sample index, reason, lanes) of rows that hold a replacement, or zeros if there was none. `lanes` names
    # the lanes whose pipelines refused the sample; empty means all lanes of the task, as for an unreadable file.
    bad: Annotated[list[BadRow], Size(MAX_CHUNK_ROWS * 4)]
    read_ns: Nanoseconds  # time for reading encoded bytes
    make_ns: Nanoseconds  # time for decode and augmentation
    shared_ns: Nanoseconds = 0  # CPU time spent for all lanes together; 0 for a task of one lane
    # CPU time of rendering for each lane; empty for a task of one lane
    lanes_ns: Annotated[list[Nanoseconds], Size(MAX_LANES)] = field(default_factory=list)
    # time in each op of the first lane, then of the next one, and so on; part of `make_ns`. Empty if they are too many.
    ops_ns: Annotated[list[Nanoseconds], Size(MAX_OPS_NS)] = field(default_factory=list)
    at_ns: Nanoseconds = 0  # when the worker sent this (`time.monotonic_ns`); 0 if unknown
    began_ns: Nanoseconds = 0  # when the worker began the task; 0 if unknown
    held_ns: Nanoseconds = 0  # how long a remote worker waited before it, for rows that were still being sent


@dataclass(frozen=True, slots=True)
class Failed:
    """`task` failed because of a source that vanished, or of a bug."""

    task: Count
    reason: Text  # for the log and the jobs
    lane: Small | None = None  # the lane to blame; None if none is
    elsewhere: bool = False  # the worker's machine is another one, and may be to blame: workers of this one can tell
    damaged: Path = ""  # the index file that is not as it was written, if that is the cause


@dataclass(frozen=True, slots=True)
class At:
    """The row that a remote worker makes, in a task that is `alone`: see `prepserver.telemetry.page.StatsPage`."""

    position: Position
    index: Annotated[int, Range(-1, 2**48)]
    lane: Annotated[int, Range(-1, 2**31 - 1)] = -1


@dataclass(frozen=True, slots=True)
class BuildIndex:
    """List `source` and leave its index in `cache_dir`: the only request to an indexer."""

    source: Tree
    cache_dir: Path
    roots: Roots = field(default_factory=list)  # folders that should hold the source; empty for any folder
    roots_only: bool = True  # whether a source elsewhere is refused; else it is indexed, too, without this check
    files: Files = field(default_factory=list)  # files that the ops of a pipeline read, with the same checks
    one_by_one: bool = False  # read one file at a time and name each in `Indexing.at`: an indexer died of this source


@dataclass(frozen=True, slots=True)
class Indexing:
    """The indexer has found `samples` so far."""

    samples: Count
    at: Text = ""  # the file that it begins, if `one_by_one`


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index is at `path`; the indexer ends. See `prepserver.source.Listing`, and `AddStream` for `places`."""

    path: Path
    samples: Count
    num_classes: Count
    digest: Word
    content_digest: Word
    # those of the requested folders that hold the dataset; its readers must check that every file is in them
    roots: Roots = field(default_factory=list)
    places: Places = field(default_factory=list)
    files: Words = field(default_factory=list)  # digests of the content of the requested files; `places` covers them
    classes: ClassNames = field(default_factory=list)  # as in `Welcome`
    row_groups: Annotated[list[Count], Size(MAX_ROW_GROUPS)] = field(default_factory=list)  # their ends, in samples
    kept_rows: Count = 0  # how many samples of row groups a worker keeps decoded
    coarse_bytes: Count = 0  # of all samples, if in a shuffled order most of them would decode a large row group

    @property
    def key(self) -> str:
        """Names what is read, and with which roots: equal keys mean equal samples for all users who may read them."""
        return hashlib.sha256(f"{self.digest} {self.roots}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class IndexFailed:
    """The source cannot be listed; `reason` is for its owner."""

    reason: Text


@dataclass(frozen=True, slots=True)
class Prepare:
    """What a zygote, or the bridge to Ray, loads, and how its children run: its first message."""

    nice: Small = 5  # added to the children's niceness, so that training processes come first
    log_level: Word = "INFO"  # of this process and its children, which log to the daemon's stderr
    log_format: Word = "text"  # see `prepserver.telemetry.logs`
    # Whether children confine themselves: ``auto``, ``on`` or ``off``. The daemon checks `Ready.unconfined` for ``on``.
    sandbox: Word = "auto"
    plugins: Texts = field(default_factory=list)  # names of the plug-ins to load
    plugin_read: Texts = field(default_factory=list)  # folders that children may read for plug-ins
    url_roots: Texts = field(default_factory=list)  # URLs below which they may read; without any, they have no network
    read_deadline_s: Seconds = 15.0  # longest time for one read from a URL
    worker_bytes: Count = 0  # what a worker may allocate for itself; 0 for no limit
    ray_address: Text = ""  # see `prepserver.config.Settings`; for the bridge


@dataclass(frozen=True, slots=True)
class Spawn:
    """Fork a child of `kind`; its end of a socket pair and its statistics page come with this message.

    No other child ever has this `ticket`. The worker that replaces this one has the same `number`.
    """

    ticket: Count
    number: Small
    kind: Kind


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote has imported everything, and forks from now on."""

    kernels: Word = "pure"  # the kernels that make rows, ``native`` or ``pure``
    why: Text = ""  # the reason for that, in words
    sandbox: Word = "none"  # parts of the sandbox that its children have, in words
    unconfined: Text = ""  # missing parts and the reason; empty if none is missing
    # role, name, digest of the code and origin of each loaded plug-in
    plugins: Plugins = field(default_factory=list)
    broken: Text = ""  # why it could not load all that `Prepare` names; empty if it could


@dataclass(frozen=True, slots=True)
class Spawned:
    """The child of `ticket` runs; its pidfd comes with this message."""

    ticket: Count
    pid: Small
    host: Word = ""  # machine of a remote worker, for which the bridge sends a pipe as the pidfd; empty on this machine


@dataclass(frozen=True, slots=True)
class Exited:
    """The child of `ticket` ended and was reaped, or could not be started for this `reason`."""

    ticket: Count
    status: int | None = None  # its exit status, or minus the signal that ended it; None if it was not started
    reason: Text = ""


TO_WORKER = registry(AddStream, AddCache, DropCache, Quarantine, AddLane, DropLane, DropStream, Fill)
FROM_WORKER = registry(Filled, Failed)
FROM_ACTOR = registry(Filled, Failed, At)
TO_INDEXER = registry(BuildIndex)
FROM_INDEXER = registry(Indexing, Indexed, IndexFailed)
TO_NEW_ZYGOTE = registry(Prepare)
TO_ZYGOTE = registry(Spawn)
FROM_ZYGOTE = registry(Ready, Spawned, Exited)
