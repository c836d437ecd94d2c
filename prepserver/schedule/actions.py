"""Actions of the coordinator. The daemon carries them out in order, all of them before the next event.

Four are messages of `prepserver.protocol.work` to all workers: `AddStream`; `AddLane`, to which the daemon adds the
ring; `DropLane`, for a lane that nobody uses any more, whose ring the daemon drops as well; `DropStream`, for a stream
whose lanes were dropped before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prepserver.protocol import work
from prepserver.protocol.layout import Field


@dataclass(frozen=True, slots=True)
class Submit:
    """Give a worker this chunk."""

    worker: int
    fill: work.Fill


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell a rank that all rows below `upto` are in its ring.

    `bad` has (position, sample index, reason) of rows that hold a replacement; `moves` counts the rank's moves to
    another ring.
    """

    cursor: int
    upto: int
    bad: tuple[tuple[int, int, str], ...]
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """Give a rank its place."""

    asker: int  # the connection
    cursor: int  # the rank's number from now on
    lane: int  # the lane whose ring it gets
    epoch_start: int  # see `prepserver.protocol.messages.Welcome`, also for `position`, `ahead` and `alone_upto`
    position: int
    first: int  # start of its own first batch
    ahead: int
    alone_upto: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse a rank; see `prepserver.protocol.messages.Refused`."""

    asker: int
    code: str
    text: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """End an admitted rank with an error; the table no longer has it."""

    cursor: int
    code: str
    text: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class MakeRing:
    """Make a ring of `wanted` rows, or at least `needed`, charged to `uid`.

    It is the last action of its list; the next event is the answer, `RingMade` or `RingRefused`.
    """

    lane: int
    uid: int
    fields: tuple[Field, ...]
    wanted: int
    needed: int


@dataclass(frozen=True, slots=True)
class DropRing:
    """Drop a ring that is not used after all; no worker knows its lane."""

    lane: int


@dataclass(frozen=True, slots=True)
class QuarantineSample:
    """Treat this sample as bad from now on, because it killed several workers."""

    source: str  # digest of its listing
    index: int
    pipeline: str = ""  # digest of the only pipeline for which it is bad; empty for all
    # (stream, lane) in which workers must skip it; a lane of None stands for all
    places: tuple[tuple[int, int | None], ...] = ()
    why: str = ""  # what happened to the last worker, in words
    ops: str = ""  # ops of the pipeline, for the log
    dataset: str = ""  # place of the source, for the log


@dataclass(frozen=True, slots=True)
class Move:
    """From position `start` on, a rank's rows are in another lane's ring."""

    cursor: int
    lane: int
    start: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The jobs of `stream`, which ends, read `into` from now on; the actions that carry this out follow.

    `lanes` maps each lane of `stream` to the one in `into`, or to itself if it moves with its ring.
    """

    stream: int
    into: int
    lanes: dict[int, int]


@dataclass(frozen=True, slots=True)
class GoesAlone:
    """An early stream stops waiting for the other one and goes on alone."""

    stream: int
    why: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill this worker without blame: it retires, or another one has made its rows."""

    worker: int


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log."""

    level: Literal["info", "warning", "error"]
    text: str


Action = (
    Submit | Announce | Admit | Refuse | End | MakeRing | DropRing | work.AddStream | work.AddLane | work.DropLane
    | work.DropStream | QuarantineSample | Move | Joined | GoesAlone | KillWorker | Say
)  # fmt: skip
