"""Events: messages of clients and workers, answers about memory, and time.

`cursor` is the number that `Admit` gave a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.protocol import work
from prepserver.schedule.asked import Asked
from prepserver.schedule.records import BadRow, Suspect, Took


@dataclass(frozen=True, slots=True)
class Limits:
    """How many jobs (of any number of ranks) one user may have, and how many streams they may read; 0: no limit."""

    jobs_per_uid: int = 0
    streams_per_uid: int = 0


@dataclass(frozen=True, slots=True)
class RankAttaches:
    """A rank asks for its rows; `Admit` or `Refuse` answers.

    Attributes:
        asker: The connection, for the answer.
        uid: User of the rank.
        asked: Its question, checked.
        listing: Listing of its source.
        rows_per_s: Rate at which the pool fills rows, which turns rows into a wait.
        limits: Limits of its user.
    """

    asker: int
    uid: int
    asked: Asked
    listing: work.Indexed
    rows_per_s: float
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class RankLeft:
    """A rank is gone, for whatever reason."""

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
    """A rank has been in `next()` for a while, and asks for its last announcement again.

    It gets none if it has not read (`reads`) the earlier ones, because it would leave this one unread, too.
    """

    cursor: int
    reads: bool = True


@dataclass(frozen=True, slots=True)
class KnownBad:
    """Samples of a source that killed workers before, as (index, pipeline); an empty pipeline stands for all."""

    source: str
    samples: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class RingMade:
    """Answers `MakeRing`: the ring has `rows` rows."""

    lane: int
    rows: int


@dataclass(frozen=True, slots=True)
class RingRefused:
    """Answers `MakeRing`: there is no ring; `code` as in `Refuse`."""

    lane: int
    code: str
    why: str


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A worker is ready for tasks."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerRetires:
    """A worker gets no more tasks; it is ended when it has none left."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died.

    Attributes:
        worker: Number of the worker.
        suspect: The sample in hand, of its oldest task, if known.
        strikes: Penalty for that sample: `CRASH_STRIKES` or `KILL_STRIKES`.
        stuck: It was killed but hangs in the kernel, so its rows may still be written. A second event follows when it
            has ended.
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
    """A worker could not run a task; `lane` is to blame unless it is None. If `final`, its jobs end at once."""

    worker: int
    task: int
    reason: str
    lane: int | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent several times a second."""


Event = (
    ChunkMade | Released | RankAttaches | RankLeft | RankAsks | KnownBad | RingMade | RingRefused | WorkerUp
    | WorkerRetires | WorkerLost | ChunkFailed | Tick
)  # fmt: skip
