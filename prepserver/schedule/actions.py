"""What the scheduler asks of its shell."""

from __future__ import annotations

from dataclasses import dataclass


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
    """Tell a rank that all rows below `upto` are in its ring, and which of them hold a replacement."""

    cursor: int
    upto: int
    bad: tuple[tuple[int, int, str], ...]


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
    """

    source: str
    index: int
    pipeline: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """From position `start` on, a rank's rows are in another lane's ring.

    Attributes:
        cursor: The rank.
        lane: Its new lane.
        start: First position there.
    """

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


Action = Submit | Announce | DropLane | DropStream | QuarantineSample | Move | Joined | GoesAlone | KillWorker
