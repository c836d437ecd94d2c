"""Actions of the coordinator. The daemon carries them out in order, all of them before the next event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from prepserver.protocol import work
from prepserver.protocol.layout import Field


@dataclass(frozen=True, slots=True)
class Submit:
    """Give worker `worker` this chunk; `alone` says to make its rows one by one, because a worker died in them."""

    worker: int
    task: int
    stream: int
    lanes: tuple[int, ...]
    position: int
    count: int
    alone: bool = False


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
    """Give a rank its place.

    Attributes:
        asker: The connection.
        cursor: The rank's number from now on.
        lane: The lane whose ring it gets.
        epoch_start: See `prepserver.protocol.messages.Welcome`, also for `position`, `ahead` and `alone_upto`.
        first: Start of its own first batch.
    """

    asker: int
    cursor: int
    lane: int
    epoch_start: int
    position: int
    first: int
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
    """End an admitted rank with an error; the table has dropped it already."""

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
    """Free a ring that is not used after all; no worker knows its lane."""

    lane: int


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Announce a stream to all workers."""

    spec: work.AddStream


@dataclass(frozen=True, slots=True)
class OpenLane:
    """Announce a lane, its ring and the samples that killed workers in its pipeline to all workers."""

    lane: int
    stream: int
    pipeline: list[dict[str, Any]]
    quarantined: list[int]


@dataclass(frozen=True, slots=True)
class DropLane:
    """Drop a lane and its ring, which nobody uses any more."""

    lane: int


@dataclass(frozen=True, slots=True)
class DropStream:
    """Drop a stream whose lanes were dropped before."""

    stream: int


@dataclass(frozen=True, slots=True)
class QuarantineSample:
    """From now on treat this sample as bad, because it killed several workers.

    Attributes:
        source: Digest of its listing.
        index: Index of the sample.
        pipeline: Digest of the only pipeline for which it is bad; empty for all.
        places: (stream, lane) of which workers are told; a lane of None stands for all.
        why: What happened to the last worker, in words.
        ops: Ops of the pipeline, for the log.
        dataset: Place of the source, for the log.
    """

    source: str
    index: int
    pipeline: str = ""
    places: tuple[tuple[int, int | None], ...] = ()
    why: str = ""
    ops: str = ""
    dataset: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """From position `start` on, a rank's rows are in another lane's ring."""

    cursor: int
    lane: int
    start: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The jobs of `stream`, which ends, are in `into` from now on; this comes before the actions that follow from it.

    `lanes` maps each lane of `stream` to the one in `into`, or to itself if it moves with its ring.
    """

    stream: int
    into: int
    lanes: dict[int, int]


@dataclass(frozen=True, slots=True)
class GoesAlone:
    """A stream stops waiting for another one."""

    stream: int
    why: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill this worker without blame: another one has made its rows."""

    worker: int


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log."""

    level: Literal["info", "warning", "error"]
    text: str


Action = (
    Submit | Announce | Admit | Refuse | End | MakeRing | DropRing | OpenStream | OpenLane | DropLane
    | DropStream | QuarantineSample | Move | Joined | GoesAlone | KillWorker | Say
)  # fmt: skip
