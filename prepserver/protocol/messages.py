"""What a client and the daemon say to each other.

All messages take the *line*, one ZeroMQ connection for each client: Attach, then Scanning while the source is listed,
then Welcome, or Refused; while the job runs Ready and Release; at the end Bye. Or one question, such as AskStatus, and
its answer. After its last word the daemon waits for the client to hang up.

The *lease*, a connection on `attach.sock` (SEQPACKET), carries descriptors only, each with its number (`Descriptor`);
the first one is the line. A message names a descriptor that was sent before it. The end of the lease is the job's end.
Who gets no line, or asks nothing on it, is refused on the lease.

Both ends treat every Ready and Release as "at least up to here". What is sent arrives, in its order; but nothing is
gained by trusting in that: Sync asks for the latest after silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from prepserver.protocol.codec import registry
from prepserver.protocol.schema import (
    Count,
    Nanoseconds,
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
)

PROTOCOL = 3
"""Raised when an old peer could misread a new one. A field with a default does not need that."""

ATTACH_SOCKET = "attach.sock"
LINE_SOCKET = "line.sock"

Shuffle = Literal["none", "full", "cyclic"]
Batching = Literal["shuffle-batch-repeat", "shuffle-repeat-batch", "batch-shuffle-repeat"]
LAGS = ("auto", "wait", "detach")
BadSamples = Annotated[list[tuple[Position, int, Annotated[str, Size(512)]]], Size(8192)]


def lag_error(lag: object) -> str | None:
    """What is wrong with a `lag` policy, and what to use instead; None for one of `LAGS`."""
    if lag in LAGS:
        return None
    text = f"lag = {lag!r} is not one of {', '.join(map(repr, LAGS))}"
    if lag != "skip":
        return text
    return f"{text}: 'skip' lost batches and was removed. With 'detach' the job loses nothing; 'auto' is the default"


@dataclass(frozen=True, slots=True)
class Attach:
    """A rank of a job asks for its rows.

    Attributes:
        protocol: [lowest, highest] version that the client speaks.
        version: Of the client's package, for the log.
        job: The run's name; ranks of one run give the same.
        source: See `prepserver.pipeline.sources`.
        shuffle: The order.
        seed: Of order and augmentation.
        pipeline: See `prepserver.pipeline.pipeline`.
        rank: Of `world_size`, in this shard.
        local_ranks: (first, count) of the ranks that use this daemon, None for all of them.
        prefetch: Rows to have ready ahead of the job; 0 lets the daemon choose.
        epoch: A fresh start, at any place where an epoch may begin; the epoch's number.
        position: Or exactly here (a resumed run), in the epoch that began at `epoch_start`. Both count the samples
            of all shards.
        epoch_start: See `position`.
        first: A fresh start, at the place where epoch number `epoch` begins if epoch 0 begins here; None for anywhere.
        rounds: Batches from `position` on that this rank has had already: it comes back after a lost
            connection, and its siblings may stand a batch before or behind it.
        lag: What happens when the job holds others back: ``wait`` (they wait), ``detach`` (it goes on with
            a stream of its own, the same bytes), ``auto`` (detach while workers are idle, else wait). Other users'
            jobs do not wait: ``wait`` is ``detach`` then.
        join_wait_s: How long the job would rather wait for a shared stream than have one of its own for ever.
        num_shards: Parts into which the samples of each pass are dealt, one for each machine.
        shard_index: Which of them this job reads.
        batching: In which order samples are shuffled, batched and repeated.
    """

    protocol: tuple[Small, Small]
    version: Word
    job: Word
    source: Tree
    shuffle: Shuffle
    seed: Seed
    pipeline: Trees
    batch_size: Annotated[int, Range(1, 2**20)]
    drop_last: bool
    rank: Annotated[int, Range(0, 2**16)]
    world_size: Annotated[int, Range(1, 2**16)]
    local_ranks: tuple[Small, Small] | None = None
    prefetch: Small = 0
    epoch: Count = 0
    position: Position | None = None
    epoch_start: Position | None = None
    rounds: Count = 0
    join_wait_s: Seconds = 30.0
    lag: Word = "auto"
    num_shards: Shards = 1
    shard_index: Count = 0
    batching: Batching = "shuffle-batch-repeat"
    first: Annotated[int, Range(-(2**62), 2**62)] | None = None


@dataclass(frozen=True, slots=True)
class Scanning:
    """The source is being listed; `samples` were found so far."""

    samples: Count


@dataclass(frozen=True, slots=True)
class Welcome:
    """The job's rows.

    Attributes:
        protocol: The version that both speak from here on.
        version: Of the daemon.
        job_id: The daemon's number for this attachment, as `prepserver status` shows it.
        samples: Length of the source.
        num_classes: Distinct labels, 0 if the source has no notion of them.
        source_digest: Names the listing: equal digests, equal samples.
        epoch_start: Where the job's epoch began, in the line of its shard.
        position: Its first row, likewise.
        ahead: Rows between what is being made now and `position` (a wait, if large).
        layout: See `prepserver.protocol.layout`.
        alone_upto: Not 0: an early start. Below this position the job has a stream of its own, and may have to
            wait there for the shared one.
        content_digest: Names the listing wherever the dataset lies; empty if the daemon does not know it.
        ring: Number of the ring's descriptor.
        code: Names the code of the pipeline's plug-ins; empty if it has none.
    """

    protocol: Small
    version: Word
    job_id: Small
    samples: Count
    num_classes: Count
    source_digest: Word
    epoch_start: Position
    position: Position
    ahead: Position
    layout: Tree
    alone_upto: Position = 0
    content_digest: Word = ""
    ring: Small = 1
    code: Word = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """From `start` on the job's rows are in another ring. Sent before the first `Ready` for rows there.

    Attributes:
        start: First position in the new ring; what is below stays where it was, untouched.
        layout: See `prepserver.protocol.layout`.
        ring: Number of the new ring's descriptor.
    """

    start: Position
    layout: Tree
    ring: Small


@dataclass(frozen=True, slots=True)
class Refused:
    """Why not, or why not any longer: the daemon's last word.

    Attributes:
        code: One of the words that `prepclient.errors` knows.
        text: What to do.
        field: Which argument of the client is to blame, if one is.
    """

    code: Word
    text: Text
    field: Word | None = None


@dataclass(frozen=True, slots=True)
class AskStatus:
    """For the daemon's state as JSON."""

    version: Word


@dataclass(frozen=True, slots=True)
class Status:
    """The state is in a memfd, the descriptor of number `memory`, `nbytes` long."""

    nbytes: Count
    memory: Small


@dataclass(frozen=True, slots=True)
class AskStop:
    """Drain and end. Only for the daemon's own user and root."""

    version: Word


@dataclass(frozen=True, slots=True)
class Stopping:
    """The daemon ends; `within_s` is the longest it takes."""

    pid: Small
    within_s: Seconds


@dataclass(frozen=True, slots=True)
class Release:
    """Rows below `upto` are not needed any more.

    Attributes:
        upto: Start of the next batch of this rank that it still holds or waits for.
        wait_ns: Time for which missing rows have held up the training loop, in all.
        batches: Batches that it was handed, in all.
    """

    upto: Position
    wait_ns: Nanoseconds = 0
    batches: Count = 0


@dataclass(frozen=True, slots=True)
class Sync:
    """After silence: tell me again. Carries what `Release` would."""

    upto: Position
    wait_ns: Nanoseconds = 0
    batches: Count = 0


@dataclass(frozen=True, slots=True)
class Bye:
    """The job is done; its rows may go at once. The daemon hangs up.

    Attributes:
        upto: Start of the first batch of this rank that its training loop did not get.
    """

    upto: Position


@dataclass(frozen=True, slots=True)
class Ready:
    """All rows below `upto` are in the ring.

    Attributes:
        upto: The end of a batch of this rank.
        bad: (position, sample index, reason) of rows among them that hold a replacement.
    """

    upto: Position
    bad: BadSamples = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """On the lease: the descriptor that comes with it has this number. 0 is the line, a listening socket.

    The daemon's connection waits on it.
    """

    number: Small


FROM_LEASE = registry(Descriptor, Refused)
TO_DAEMON = registry(Attach, AskStatus, AskStop, Release, Sync, Bye)
FROM_DAEMON = registry(Scanning, Welcome, Refused, Moved, Ready, Status, Stopping)
