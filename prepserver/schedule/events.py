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
    """How many jobs (of any number of ranks) a user may have, and how many streams they may read; 0 means no limit."""

    jobs_per_uid: int = 0
    streams_per_uid: int = 0


@dataclass(frozen=True, slots=True)
class RankAttaches:
    """A rank asks for its rows; `Admit` or `Refuse` answers."""

    asker: int  # the connection, for the answer
    uid: int
    asked: Asked  # its question, checked
    listing: work.Indexed
    rows_per_s: float  # rate of the pool, which turns rows into a wait
    limits: Limits = Limits()  # limits of its user
    # samples of its source that killed workers before, as (index, pipeline); an empty pipeline stands for all
    known_bad: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RankLeft:
    """A rank is gone, for any reason."""

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

    It gets none while earlier messages to it are unread (`reads` is False): it would leave this one unread, too.
    """

    cursor: int
    reads: bool = True


@dataclass(frozen=True, slots=True)
class RingMade:
    """Answers `MakeRing`: the ring has `rows` rows."""

    rows: int


@dataclass(frozen=True, slots=True)
class RingRefused:
    """Answers `MakeRing`: there is no ring; `code` as in `Refuse`."""

    code: str
    why: str


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A worker is ready for tasks."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerRetires:
    """A worker gets no more tasks; `KillWorker` follows when it has none left."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died."""

    worker: int
    suspect: Suspect | None = None  # the sample in hand, of its oldest task, if known
    strikes: int = 0  # penalty for that sample: `CRASH_STRIKES` or `KILL_STRIKES`
    # It was killed but hangs in the kernel, which may still write its rows. A second event follows when it has ended.
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
    """A worker, maybe on another machine (`elsewhere`), could not run a task; `lane` is to blame unless it is None."""

    worker: int
    task: int
    reason: str
    lane: int | None = None
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent several times a second."""


Event = (
    ChunkMade | Released | RankAttaches | RankLeft | RankAsks | RingMade | RingRefused | WorkerUp | WorkerRetires
    | WorkerLost | ChunkFailed | Tick
)  # fmt: skip
