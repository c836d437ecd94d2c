"""The early start: a job that would have to wait for a shared stream begins at once, on a separate one.

That stream begins at the very position at which the job would join, so it has the same rows. It may go a short way
only, its allowance, and rests there. When the shared stream's head comes to where it stands, its jobs go on in the
shared stream, for ever. So at most the allowance is made twice.

```
                    E             cap
                    |              |
  own stream        +==============+   rests at its head
  shared stream  ======> head          its jobs join when this head comes to theirs
```

It holds up nobody: if the two cannot be joined when they meet, or if the wait turns out too long, the rest ends, and
the early stream is one like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.protocol.work import MAX_LANES
from prepserver.schedule.lag import STILL_S
from prepserver.schedule.records import Meeting
from prepserver.schedule.stream import Stream

START_EARLY_S = 1.0
"""A shorter wait is not worth a ring and rows made twice."""

ALLOWANCE = 64
"""An early stream makes at most this fraction of an epoch, one 64th (1.6 %), but `LEAST_ROUNDS` in any case."""

LEAST_ROUNDS = 2
"""Fewest rounds of batches that a ring holds: with fewer, filling and reading would take turns."""

PATIENCE = 2.0
"""How many times longer than foreseen the rest may last."""


@dataclass(slots=True)
class Early:
    """A stream that waits for another one.

    Attributes:
        stream: The stream that waits.
        into: The stream that it waits for.
        least: It makes the rows below this itself, unless the other stream is there already.
        patience_s: The longest time that its jobs may wait at the cap.
        rests_s: Since when they wait, monotonic; None while they do not.
        seen: Where the other stream's slowest job stands, and since when.
    """

    stream: int
    into: int
    least: int
    patience_s: float
    rests_s: float | None = None
    seen: tuple[int, float] | None = None

    def lost_patience(self, stream: Stream, into: Stream | None, now_s: float) -> bool:
        """Whether its jobs have waited for too long. Call it several times a second.

        They wait no longer for another user's job that stands still.
        """
        waits = stream.cap is not None and stream.watermark == stream.head >= stream.cap and stream.ready_rows() == 0
        if not waits or into is None:
            self.rests_s = self.seen = None
            return False
        if self.rests_s is None:
            self.rests_s = now_s
        if self.seen is None or self.seen[0] != into.low:
            self.seen = into.low, now_s
        users = {stream.owner(c) for c in stream.cursors.values()}
        strangers = any(c.need == into.low and into.owner(c) not in users for c in into.cursors.values())
        return now_s - self.rests_s > self.patience_s or (strangers and now_s - self.seen[1] > STILL_S)


def allowance(n: int, round_rows: int) -> int:
    """Rows that an early stream may make, in whole rounds; 0 where an epoch is too short for that.

    Args:
        n: Samples of an epoch.
        round_rows: ``batch_size * world_size`` of its job.
    """
    rows = max(LEAST_ROUNDS, n // ALLOWANCE // round_rows) * round_rows
    return rows if rows < n else 0


@dataclass(frozen=True, slots=True)
class Alone:
    """The wait ends without a meeting; why, in words."""

    why: str


@dataclass(frozen=True, slots=True)
class Near:
    """The other stream is about to come by: nothing more is begun here, so that its rows are there then."""


def look(early: Early, stream: Stream, into: Stream | None) -> Meeting | Near | Alone | None:
    """How an early stream and the one that it waits for stand to each other; None: far apart.

    Args:
        early: The wait.
        stream: That waits.
        into: For which; None if it is gone.
    """
    if into is None or not into.cursors:
        return Alone("the stream that it waited for is gone")
    head = stream.head
    if into.head > head:
        return Alone("the stream that it waited for has gone past")
    rows = into.ring_rows
    reach = rows // 2 if head >= early.least else 0
    if into.head + reach < head:
        return None
    lanes = _lanes(stream, into, rows)
    if lanes is None:
        return Alone("their rings are too small for each other's batches, or too many for one stream")
    if stream.watermark < head:
        return Near()  # what is in work comes to its end, whoever does it
    adopted = any(old == new for old, new in lanes.items())
    if (
        all(c.present for c in stream.cursors.values())
        # who is behind would hold the others back
        and stream.low + rows // 2 >= into.low
        # a ring that goes along is filled anew: nobody may write old rows into it any more
        and not (adopted and stream.chunks.running)
    ):
        return Meeting(stream.id, into.id, lanes)
    return Near() if into.head < head else Alone("its jobs were not ready to join when the other stream came by")


def _lanes(stream: Stream, into: Stream, rows: int) -> dict[int, int] | None:
    """For each lane of `stream` the one in `into` that has the same rows, or itself where it must go along."""
    if max(c.round_rows for c in stream.cursors.values()) * LEAST_ROUNDS > rows:
        return None
    most = max(c.round_rows for c in into.cursors.values()) * LEAST_ROUNDS
    lanes: dict[int, int] = {}
    for lane in stream.lanes.values():
        match = next((x for x in into.lanes.values() if x.key == lane.key and x.start <= stream.head), None)
        if match is None and lane.rows < most:
            return None
        lanes[lane.id] = lane.id if match is None else match.id
    along = sum(old == new for old, new in lanes.items())
    return lanes if len(into.lanes) + along <= MAX_LANES else None
