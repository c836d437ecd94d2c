"""What the coordinator wants done, in this order, and all of it before the next event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from prepserver.protocol import work
from prepserver.protocol.layout import Field


@dataclass(frozen=True, slots=True)
class Submit:
    """Give worker `worker` this chunk."""

    worker: int
    task: int
    stream: int
    lanes: tuple[int, ...]
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell a rank that all rows below `upto` are in its ring, and which of them hold a replacement.

    Attributes:
        cursor: The rank.
        upto: See above.
        bad: (position, sample index, reason) of the rows with a replacement.
        moves: How often the rank was moved to another ring before this.
    """

    cursor: int
    upto: int
    bad: tuple[tuple[int, int, str], ...]
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """A rank has its place.

    Attributes:
        asker: Who asked.
        cursor: Its number from now on.
        lane: Whose ring it gets.
        epoch_start: Where its epoch began.
        position: Where its run of batches begins.
        first: Start of its own first batch.
        ahead: Rows between what is being made now and `position`.
        alone_upto: Not 0: below this position it has a stream of its own, and may have to wait there.
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
    """A rank has no place; see `prepserver.protocol.messages.Refused`."""

    asker: int
    code: str
    text: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """A rank that was admitted is ended, and told why; it is forgotten already."""

    cursor: int
    code: str
    text: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class HangUp:
    """End a rank's connection: it attaches anew, as after any lost connection. It is there until it has left."""

    cursor: int


@dataclass(frozen=True, slots=True)
class MakeRing:
    """Make a ring; the answer, `RingMade` or `RingRefused`, is the next event. Always the last of its list.

    Attributes:
        lane: For which it is.
        uid: Whose memory it is.
        fields: Of a row.
        wanted: Rows, if they fit.
        needed: Rows that will do.
    """

    lane: int
    uid: int
    fields: tuple[Field, ...]
    wanted: int
    needed: int


@dataclass(frozen=True, slots=True)
class DropRing:
    """A ring that was made is not used after all: no worker has heard of its lane."""

    lane: int


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Tell all workers of a stream."""

    spec: work.AddStream


@dataclass(frozen=True, slots=True)
class OpenLane:
    """Tell all workers of a lane, whose ring is there.

    Attributes:
        lane: Its number.
        stream: Whose it is.
        pipeline: Wire form.
        quarantined: Samples that killed workers in this pipeline.
    """

    lane: int
    stream: int
    pipeline: list[dict[str, Any]]
    quarantined: list[int]


@dataclass(frozen=True, slots=True)
class DropLane:
    """Nobody uses this lane any more: its ring may go."""

    lane: int


@dataclass(frozen=True, slots=True)
class DropStream:
    """Nobody uses this stream any more; its lanes are dropped already."""

    stream: int


@dataclass(frozen=True, slots=True)
class QuarantineSample:
    """This sample killed workers again and again: treat it as bad from now on.

    Attributes:
        source: Digest of its listing.
        index: Of the sample.
        pipeline: Digest of the only pipeline for which it is bad; empty for all.
        places: (stream, lane) that are to be told; a lane of None stands for all.
        why: What happened to the last worker, in words.
        ops: Of the pipeline, for people.
        dataset: Where the source is, for people.
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
    """The jobs of a stream are in another one from now on; said before what follows from it.

    Attributes:
        stream: Which ends.
        into: Where they are.
        lanes: Old lane -> lane there; equal where a lane goes along with its ring.
    """

    stream: int
    into: int
    lanes: dict[int, int]


@dataclass(frozen=True, slots=True)
class GoesAlone:
    """A stream waits for another one no longer."""

    stream: int
    why: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End this worker: another one was quicker with its rows. It is not to blame."""

    worker: int


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the log."""

    level: Literal["info", "warning", "error"]
    text: str


Action = (
    Submit
    | Announce
    | Admit
    | Refuse
    | End
    | HangUp
    | MakeRing
    | DropRing
    | OpenStream
    | OpenLane
    | DropLane
    | DropStream
    | QuarantineSample
    | Move
    | Joined
    | GoesAlone
    | KillWorker
    | Say
)
