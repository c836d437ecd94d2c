"""What happens to the coordinator: words of clients and of workers, answers about memory, and time."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.protocol import work
from prepserver.schedule.asked import Asked
from prepserver.schedule.records import BadRow, Suspect, Took


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one user may have; 0 for no limit.

    Attributes:
        jobs_per_uid: Runs, of any number of ranks.
        streams_per_uid: Different streams that its jobs read.
    """

    jobs_per_uid: int = 0
    streams_per_uid: int = 0


@dataclass(frozen=True, slots=True)
class RankAttaches:
    """A rank asks for its rows. It is answered by `Admit` or `Refuse`.

    Attributes:
        asker: Names the connection in the answer.
        uid: Of its user.
        asked: Its question, checked.
        listing: Of its source.
        rows_per_s: Rate at which the pool fills rows, to turn rows into a wait.
        limits: For each user.
    """

    asker: int
    uid: int
    asked: Asked
    listing: work.Indexed
    rows_per_s: float
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class RankLeft:
    """A rank is gone, in whatever way."""

    cursor: int


@dataclass(frozen=True, slots=True)
class Released:
    """A rank needs no row below `upto`.

    Attributes:
        cursor: The rank.
        upto: See `prepserver.protocol.messages.Release`, as the next two.
        wait_ns: Spent in `next()`.
        batches: Handed to the training loop.
    """

    cursor: int
    upto: int
    wait_ns: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class RankAsks:
    """A rank wants to hear again what it was told last.

    Attributes:
        cursor: The rank.
        waits: Because it has been in `next()` for a while; False where it just came or may have missed something.
    """

    cursor: int
    waits: bool = False


@dataclass(frozen=True, slots=True)
class KnownBad:
    """These samples of a source killed workers before this daemon began.

    Attributes:
        source: Digest of its listing.
        samples: (index, pipeline) of each; an empty pipeline stands for all.
    """

    source: str
    samples: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class RingMade:
    """The answer to `MakeRing`: there is a ring, of so many rows."""

    lane: int
    rows: int


@dataclass(frozen=True, slots=True)
class RingRefused:
    """The answer to `MakeRing`: there is none, and why. `code` as in `Refuse`."""

    lane: int
    code: str
    why: str


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A worker is ready for tasks."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died.

    Attributes:
        worker: Which.
        suspect: What it was at (of its oldest task), if known.
        strikes: How much speaks against that: `CRASH_STRIKES` or `KILL_STRIKES`.
        stuck: It was killed and does not end, because it hangs in the kernel: it may yet write into its rows. A second
            event says when it has ended.
    """

    worker: int
    suspect: Suspect | None = None
    strikes: int = 0
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class ChunkMade:
    """A worker filled the rows of a task."""

    worker: int
    task: int
    bad: tuple[BadRow, ...] = ()
    took: Took = Took()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class ChunkFailed:
    """A worker could not run a task.

    Attributes:
        worker: Which.
        task: What it was given.
        reason: For people.
        lane: Which lane is to blame; None where none is.
    """

    worker: int
    task: int
    reason: str
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. To be sent several times a second."""


Event = (
    ChunkMade
    | Released
    | RankAttaches
    | RankLeft
    | RankAsks
    | KnownBad
    | RingMade
    | RingRefused
    | WorkerUp
    | WorkerLost
    | ChunkFailed
    | Tick
)
