"""The messages between a client and the daemon.

Messages travel on the *line*, one ZeroMQ connection for each client: Attach, Scanning while the source is listed,
Welcome or Refused, and then Ready and Release while the job runs; or one question, such as AskStatus, and its answer.
After its last message the daemon waits for the client to hang up.

The *lease*, a connection on `attach.sock` (SEQPACKET), begins with the client's Hello and ends with its Bye. Between
them it carries only descriptors, each with its number (`Descriptor`); the first one is the line. A message names
descriptors that were sent before it. The job ends with its lease. A client that gets no line, or asks nothing on it, is
refused on the lease.

Every Ready and Release means "at least up to here", and after a silence Sync asks for the latest Ready. So neither end
relies on the arrival of each message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from prepserver.protocol.codec import registry
from prepserver.protocol.schema import (
    ClassNames,
    Count,
    Grows,
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
)  # fmt: skip

ATTACH_SOCKET = "attach.sock"
LINE_SOCKET = "line.sock"

SYNC_AFTER_S = 2.0
"""After this much silence in `next()` a client sends a `Sync`, so that a lost message costs no more than a delay."""

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
class Hello(Grows):
    """A client's first message, on the lease. Every release understands it."""

    protocol: Small  # number of the client's protocol, see `prepserver.protocol.versions`
    version: Word  # version of the client's package


@dataclass(frozen=True, slots=True)
class Attach:
    """A rank of a job asks for its rows."""

    job: Word  # the run's name, the same for all ranks of a run
    source: Tree  # see `prepserver.pipeline.sources`
    shuffle: Shuffle
    seed: Seed  # seed of order and augmentation
    pipeline: Trees  # see `prepserver.pipeline.pipeline`
    batch_size: Annotated[int, Range(1, 2**20)]
    drop_last: bool
    rank: Annotated[int, Range(0, 2**16)]  # rank of `world_size` in this shard
    world_size: Annotated[int, Range(1, 2**16)]
    local_ranks: tuple[Small, Small] | None = None  # (first, count) of the ranks that use this daemon, None for all
    prefetch: Small = 0  # rows to have ready for the job; 0 lets the daemon choose
    epoch: Count = 0  # number of the epoch, which begins at any position where one may begin unless `position` is given
    # Exact start of a resumed run, in the epoch that began at `epoch_start`. Both count the samples of all shards.
    position: Position | None = None
    epoch_start: Position | None = None  # see `position`
    # batches from `position` on that this rank has taken already, if it comes back after a lost connection: its
    # siblings may be a batch ahead or behind
    rounds: Count = 0
    join_wait_s: Seconds = 30.0  # longest wait for a running stream before a separate one is started
    # what happens when the job holds others back: ``wait`` (they wait), ``detach`` (it continues in a separate stream
    # with the same bytes), ``auto`` (detach while workers are idle, else wait). Jobs of other users never wait: if it
    # holds back one of them, ``wait`` means ``detach``
    lag: Word = "auto"
    num_shards: Shards = 1  # shards of each pass, one for each machine
    shard_index: Count = 0  # the shard that this job reads
    batching: Batching = "shuffle-batch-repeat"  # the order in which samples are shuffled, batched and repeated
    # where epoch 0 of a fresh run would begin, so that `epoch` has a fixed start; None for anywhere
    first: Annotated[int, Range(-(2**62), 2**62)] | None = None
    cache: Text = ""  # see `prepserver.pipeline.caching.wanted`


@dataclass(frozen=True, slots=True)
class Scanning(Grows):
    """The source is being listed; `samples` have been found so far."""

    samples: Count


@dataclass(frozen=True, slots=True)
class Welcome(Grows):
    """The daemon admits the rank; here are its rows."""

    job_id: Small  # the daemon's number for this attachment, as `prepserver status` shows it
    samples: Count  # length of the source
    num_classes: Count  # distinct labels, 0 if the source has none
    source_digest: Word  # names the listing: equal digests mean equal samples
    epoch_start: Position  # position in the job's shard at which its epoch began
    position: Position  # its first position there
    ahead: Position  # rows between the stream's current position and `position`; a large number means a wait
    layout: Tree  # see `prepserver.protocol.layout`
    # after an early start: up to this position the job has a separate stream, and may wait there for the shared one;
    # else 0
    alone_upto: Position = 0
    content_digest: Word = ""  # names the listing wherever the dataset is stored; empty if the daemon does not know it
    ring: Small = 1  # number of the ring's descriptor
    code: Word = ""  # names the code of the pipeline's plug-ins; empty if it has none
    # names of the classes by label; empty if there are none, or they would not fit
    classes: ClassNames = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Moved(Grows):
    """From `start` on the job's rows are in another ring; the first `Ready` for them follows."""

    start: Position  # first position in the new ring; rows below it stay in the old one
    layout: Tree  # see `prepserver.protocol.layout`
    ring: Small  # number of the new ring's descriptor


@dataclass(frozen=True, slots=True)
class Refused(Grows):
    """The daemon refuses or ends the job. This is its last message."""

    code: Word  # one of the codes in `prepclient.errors`
    text: Text  # the reason and what to do
    field: Word | None = None  # the client's argument to blame, if one is


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Asks for the daemon's state as JSON."""

    # also asks when chunks were made and what ranks reported, from this time on (`time.monotonic_ns`)
    since_ns: Nanoseconds | None = None


@dataclass(frozen=True, slots=True)
class Status(Grows):
    """The daemon's state, as JSON in a memfd."""

    nbytes: Count  # length of the JSON
    memory: Small  # number of the memfd's descriptor


@dataclass(frozen=True, slots=True)
class AskStop:
    """Asks the daemon to drain and end; only its own user and root may."""

    # the asker is a daemon that is ready to take its place: end at once, because jobs come back to that one
    successor: bool = False


@dataclass(frozen=True, slots=True)
class Stopping(Grows):
    """The daemon ends within `within_s`."""

    pid: Small
    within_s: Seconds


@dataclass(frozen=True, slots=True)
class Release(Grows):
    """The client no longer needs rows below `upto`."""

    upto: Position  # start of the first batch of this rank that it holds or waits for
    wait_ns: Nanoseconds = 0  # total time for which the training loop has waited for rows
    batches: Count = 0  # total number of batches that it has received
    copy_ns: Nanoseconds = 0  # total time for which the loop has waited while received rows were copied
    own_ns: Nanoseconds = 0  # total time that the loop itself took between two batches of an epoch


@dataclass(frozen=True, slots=True)
class Sync(Grows):
    """After silence: asks for the latest `Ready`, and tells `upto` as `Release` does."""

    upto: Position
    # no client of protocol 4 sends these: they may go when the number changes
    wait_ns: Nanoseconds = 0
    batches: Count = 0


@dataclass(frozen=True, slots=True)
class AskLogs:
    """Asks for the files about a job of this user, which only the daemon's user may open: its log, and its runs."""

    job: Text


@dataclass(frozen=True, slots=True)
class Logs:
    """The files' names, and the numbers of their descriptors, which can only be read."""

    names: Annotated[list[Text], Size(16)]
    given: Annotated[list[Small], Size(16)]


@dataclass(frozen=True, slots=True)
class Bye(Grows):
    """The job has ended and needs no rows; the daemon hangs up."""

    upto: Position  # start of this rank's first batch that its training loop did not take


@dataclass(frozen=True, slots=True)
class Ready(Grows):
    """All rows below `upto` are in the ring."""

    upto: Position  # the end of a batch of this rank
    # (position, sample index, reason) of those rows that hold a replacement
    bad: BadSamples = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Descriptor(Grows):
    """On the lease: the number of the descriptor that comes with it.

    Number 0 is the line: a listening socket on which the daemon's connection waits.
    """

    number: Small


FROM_LEASE = registry(Descriptor, Refused)
TO_LEASE = registry(Hello, Bye)
TO_DAEMON = registry(Attach, AskStatus, AskStop, AskLogs, Release, Sync)
TO_ANY_DAEMON = registry(AskStatus, AskStop, AskLogs)
"""What clients of any protocol may ask: an operator's tools are often of another release than the daemon."""
FROM_DAEMON = registry(Scanning, Welcome, Refused, Moved, Ready, Status, Stopping, Logs)
