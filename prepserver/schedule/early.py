"""The early start: a job begins at once instead of waiting until a shared stream reaches its start position. Pure.

It gets a separate early stream that starts at the position where it would join, so its rows are the same. The early
stream may make only a few rows, its allowance, and stops at its cap. When the shared stream's head arrives there, the
job moves to the shared stream. So at most the allowance is made twice.

```
                    E             cap
                    |              |
  early stream      +==============+   waits at its head
  shared stream  ======> head          its jobs join when this head arrives there
```

If the two cannot join when they meet, or the wait takes too long, the early stream loses its cap and goes on alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.protocol.work import MAX_LANES
from prepserver.schedule.actions import GoesAlone, Joined
from prepserver.schedule.lag import STILL_S
from prepserver.schedule.stream import Stream

START_EARLY_S = 1.0
"""A shorter wait is not worth a ring and rows made twice."""

ALLOWANCE = 64
"""An early stream makes at most 1/64 of an epoch."""

LEAST_ROUNDS = 2
"""Fewest rounds of batches of an early stream, and of a ring: with fewer, filling and reading would take turns."""

PATIENCE = 2.0
"""Longest wait at the cap, as a multiple of `join_wait_s`."""


@dataclass(slots=True)
class Early:
    """A stream that waits for another one."""

    stream: int
    into: int  # the stream that it waits for
    least: int  # it makes rows below this position itself, unless the other stream has arrived
    patience_s: float  # longest wait of its jobs at the cap
    rests_s: float | None = None  # start of that wait, monotonic; None while they do not wait
    # position of the other stream's slowest job, and since when it has been there
    seen: tuple[int, float] | None = None

    def lost_patience(self, stream: Stream, into: Stream | None, now_s: float) -> bool:
        """Whether its jobs have waited too long, or another user's job has stood still; called on each tick."""
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
    """Rows that an early stream may make, in whole rounds; 0 if the epoch of `n` samples is too short."""
    rows = max(LEAST_ROUNDS, n // ALLOWANCE // round_rows) * round_rows
    return rows if rows < n else 0


@dataclass(frozen=True, slots=True)
class Near:
    """The other stream is about to arrive: the early stream starts no more chunks, so that it has finished by then."""


def look(early: Early, stream: Stream, into: Stream | None) -> Joined | Near | GoesAlone | None:
    """Compares an early stream with `into`, for which it waits; None if they are far apart."""
    if into is None or not into.cursors:
        return GoesAlone(stream.id, "the stream that it waited for is gone")
    head = stream.head
    if into.head > head:
        return GoesAlone(stream.id, "the stream that it waited for has gone past")
    rows = into.ring_rows
    reach = rows // 2 if head >= early.least else 0
    if into.head + reach < head:
        return None
    lanes = _lanes(stream, into, rows)
    if lanes is None:
        return GoesAlone(stream.id, "their rings are too small for each other's batches, or too many for one stream")
    if stream.watermark < head:
        return Near()  # chunks in flight finish first
    adopted = any(old == new for old, new in lanes.items())
    if (
        all(c.present for c in stream.cursors.values())
        # a job further behind would hold the others back
        and stream.low + rows // 2 >= into.low
        # a ring that moves is refilled, so no worker may still write into it
        and not (adopted and stream.chunks.running)
    ):
        return Joined(stream.id, into.id, lanes)
    if into.head < head:
        return Near()
    return GoesAlone(stream.id, "its jobs were not ready to join when the other stream came by")


def _lanes(stream: Stream, into: Stream, rows: int) -> dict[int, int] | None:
    """Each lane of `stream` -> the lane of `into` with the same rows, or itself if it must move with its ring."""
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
