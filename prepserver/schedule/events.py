"""What happens to the coordinator: words of clients and of workers, answers about memory, and time.

Ranks are named by their cursor, the number that `Admit` gave them.
"""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.protocol import work
from prepserver.schedule.asked import Asked
from prepserver.schedule.records import BadRow, Suspect, Took


@dataclass(frozen=True, slots=True)
class Limits:
    """How many jobs one user may have, of any number of ranks, and how many streams they may read; 0 for no limit."""

    jobs_per_uid: int = 0
    streams_per_uid: int = 0


@dataclass(frozen=True, slots=True)
class RankAttaches:
    """A rank asks for its rows; `Admit` or `Refuse` answers.

    Attributes:
        asker: Names the connection in the answer.
        uid: User of the rank.
        asked: Its question, checked.
        listing: Listing of its source.
        rows_per_s: Rate at which the pool fills rows, to turn rows into a wait.
        limits: Limits of each user.
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
    """A rank needs no row below `upto`; see `prepserver.protocol.messages.Release`."""

    cursor: int
    upto: int
    wait_ns: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class RankAsks:
    """A rank has been in `next()` for a while, and wants to hear again what it was told last.

    It is not told if it has not read (`reads`) what it was told before: it would leave that unread, too.
    """

    cursor: int
    reads: bool = True


@dataclass(frozen=True, slots=True)
class KnownBad:
    """Samples of a source that killed workers before: (index, pipeline), with an empty pipeline for all."""

    source: str
    samples: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class RingMade:
    """Answers `MakeRing`: there is a ring of so many rows."""

    lane: int
    rows: int


@dataclass(frozen=True, slots=True)
class RingRefused:
    """Answers `MakeRing`: there is none; `code` as in `Refuse`."""

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
        suspect: The sample of its oldest task that it was at, if known.
        strikes: Penalty for that sample: `CRASH_STRIKES` or `KILL_STRIKES`.
        stuck: It was killed and has not ended, because it hangs in the kernel: it may yet write its rows. A second
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
    """A worker could not run a task; `lane` is to blame, if any is."""

    worker: int
    task: int
    reason: str
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. To be sent several times a second."""


Event = (
    ChunkMade | Released | RankAttaches | RankLeft | RankAsks | KnownBad | RingMade | RingRefused | WorkerUp
    | WorkerLost | ChunkFailed | Tick
)  # fmt: skip
