"""The early start: a job begins at once instead of waiting until a shared stream reaches its start position. Pure.

The job gets a separate, early stream from the position at which it would join, so its rows are the same. The early
stream makes only a few rows, its allowance, and stops at its cap. When the head of the shared stream arrives there, the
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
from typing import Literal

from prepserver.protocol.work import MAX_LANES
from prepserver.schedule.actions import GoesAlone, Joined
from prepserver.schedule.lag import STILL_S
from prepserver.schedule.records import ROUNDS_NEEDED
from prepserver.schedule.stream import Stream

START_EARLY_S = 1.0  # a shorter wait is not worth a ring and rows made twice
BEHIND_S = 2.0  # a stream waits for a new job to catch up if that takes no longer than this at the pool's rate
ALLOWANCE = 64  # an early stream makes at most 1/64 of an epoch, but at least `ROUNDS_NEEDED` rounds
EARLY_PATIENCE = 2.0  # longest wait at the cap, as a multiple of `join_wait_s`


@dataclass(slots=True)
class StreamWait:
    """A stream that waits for another one."""

    stream: int
    into: int  # the stream that it waits for
    # below this position it goes on until the other stream arrives; from here on it stops when that one is within half
    # a ring
    least: int
    patience_s: float  # longest wait of its jobs at the cap
    rests_s: float | None = None  # start of that wait, monotonic; None while they do not wait
    # position of the other stream's slowest job, and since when it has been there
    seen: tuple[int, float] | None = None
    # whether the other stream also stops at the meeting point until this one can join; it does so only if both belong
    # to one user
    holds: bool = False

    def lost_patience(self, stream: Stream, into: Stream | None, now_s: float) -> bool:
        """Whether its jobs, or those of the other stream at the meeting point, have waited for too long.

        A wait is also too long if the other stream is held up by another user's job that has not moved for `STILL_S`.
        Call it on each tick.
        """
        is_done = stream.cap is not None and stream.watermark == stream.head >= stream.cap
        if into is None or not is_done or (stream.ready_rows() > 0 and into.head < stream.head):
            self.rests_s = self.seen = None
            return False
        if self.rests_s is None:
            self.rests_s = now_s
        if self.seen is None or self.seen[0] != into.low:
            self.seen = into.low, now_s
        users = {stream.owner(c) for c in stream.cursors.values()}
        strangers = any(c.first_needed == into.low and into.owner(c) not in users for c in into.cursors.values())
        return now_s - self.rests_s > self.patience_s or (strangers and now_s - self.seen[1] > STILL_S)


def allowance(n: int, round_rows: int) -> int:
    """Rows that an early stream may make, in whole rounds; 0 if the epoch of `n` samples is too short."""
    rows = max(ROUNDS_NEEDED, n // ALLOWANCE // round_rows) * round_rows
    return rows if rows < n else 0


def look(early: StreamWait, stream: Stream, into: Stream | None) -> Joined | GoesAlone | Literal["near"] | None:
    """Compares an early stream with `into`, for which it waits; None if they are far apart.

    If they are near, the early stream must start no more chunks, so that it has finished when the other one arrives.
    """
    if into is None or not into.cursors:
        return GoesAlone(stream.id, "the stream that it waited for is gone")
    head = stream.head
    if into.head > head:
        return GoesAlone(stream.id, "the stream that it waited for has gone past")
    rows = into.ring_rows
    reach = rows // 2 if head >= early.least else 0
    if into.head + reach < head:
        return None
    lanes = lanes_in(stream, into)
    if lanes is None:
        return GoesAlone(stream.id, "their rings are too small for each other's batches, or too many for one stream")
    if stream.watermark < head:
        return "near"  # chunks in flight finish first
    moves = any(old == new for old, new in lanes.items())
    if (
        all(c.present for c in stream.cursors.values())
        # A job further behind would hold the others back.
        and stream.low + rows // 2 >= into.low
        # A ring that moves is refilled, so no worker may still write into it.
        and not (moves and stream.chunks.running)
    ):
        return Joined(stream.id, into.id, lanes)
    users = {stream.owner(c) for c in stream.cursors.values()} | {into.owner(c) for c in into.cursors.values()}
    if into.head < head or (early.holds and len(users) == 1):
        return "near"
    return GoesAlone(stream.id, "its jobs were not ready to join when the other stream came by")


def lanes_in(stream: Stream, into: Stream) -> dict[int, int] | None:
    """Each lane of `stream` -> the lane of `into` with the same rows, or itself if it must move with its ring.

    None if the rings are too small for each other's batches, or `into` would have too many lanes.
    """
    if stream.largest_round * ROUNDS_NEEDED > into.ring_rows:
        return None
    lanes: dict[int, int] = {}
    for lane in stream.lanes.values():
        match = next((x for x in into.lanes.values() if x.key == lane.key and x.start <= stream.head), None)
        if match is None and lane.rows < into.largest_round * ROUNDS_NEEDED:
            return None
        lanes[lane.id] = lane.id if match is None else match.id
    moving = sum(old == new for old, new in lanes.items())
    return lanes if len(into.lanes) + moving <= MAX_LANES else None
