"""Jobs of different speed: who holds whom back, who may part, and who meets again. Pure.

A job that lags fills the window of its stream: the rows that it has not released cannot be refilled, and the
others wait. Parting gives it a stream of its own from where the shared one stands, with the same bytes. The
memory that it still holds is never refilled under it, so those that go on get a new ring too. A job whose
stream meets another of the same key again comes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prepserver.schedule.stream import Cursor, Stream

PATIENCE_S = 2.0
"""How long a job may hold others back, in all: longer than a checkpoint's pause mostly takes."""

FORGIVEN = 0.25
"""Of the time in which it does not hold them back. So a job that costs the others more than a fifth of their
time parts from them sooner or later, and one that stumbles now and then does not."""

APART_S = 5.0
"""How long a job stays parted at least: it would only part again."""

HEDGE_S = 2.0
"""A chunk that runs for so long while others idle is made a second time. An ordinary one takes 20 ms; the
first that is done counts, the bytes are equal."""


@dataclass(frozen=True, slots=True)
class Parting:
    """A job that holds others back and may part.

    Attributes:
        stream: Which it leaves.
        group: The job.
        skip: It stays, and loses rows instead.
    """

    stream: int
    group: int
    skip: bool


@dataclass(frozen=True, slots=True)
class Meeting:
    """A stream whose jobs can all go on in another.

    Attributes:
        stream: Which ends.
        into: Which they join.
        lanes: For each lane of `stream` the lane of `into` that has the same rows; itself if it goes along.
    """

    stream: int
    into: int
    lanes: dict[int, int]


class LagWatch:
    """Notices, over time, who holds others back.

    Args:
        chunk_rows: See `Scheduler`: a window with room for less counts as full.
    """

    def __init__(self, chunk_rows: int) -> None:
        self._chunk_rows = chunk_rows
        self._held_s: dict[tuple[int, int], float] = {}  # (stream, group) -> time held against it
        self._last_s: float | None = None
        self._parted_s: dict[int, float] = {}  # stream -> when it came of a parting

    def partings(self, streams: Iterable[Stream], workers_idle: bool, now_s: float) -> list[Parting]:
        """Jobs whose patience is used up. Call it several times a second.

        Args:
            streams: All.
            workers_idle: Whether a worker has nothing to do: what `auto` goes by.
            now_s: Monotonic.
        """
        found: list[Parting] = []
        passed_s = now_s - (now_s if self._last_s is None else self._last_s)
        self._last_s = now_s
        held = {key: left for key, s in self._held_s.items() if (left := s - FORGIVEN * passed_s) > 0}
        for stream in streams:
            slow = holding_back(stream, self._chunk_rows)
            if slow is None:
                continue
            policy = slow.lag if slow.lag != "auto" else ("detach" if workers_idle else "wait")
            if policy == "wait":
                continue
            key = (stream.id, slow.group)
            held[key] = held.get(key, 0.0) + (1 + FORGIVEN) * passed_s
            if held[key] >= PATIENCE_S:
                del held[key]
                found.append(Parting(stream.id, slow.group, policy == "skip"))
        self._held_s = held
        return found

    def parted(self, stream: int, now_s: float) -> None:
        """`stream` came of a parting just now."""
        self._parted_s[stream] = now_s

    def meetings(self, streams: Iterable[Stream], now_s: float) -> list[Meeting]:
        """Streams whose jobs can go on in another one; at most one per pair and call."""
        every = list(streams)
        self._parted_s = {k: v for k, v in self._parted_s.items() if any(s.id == k for s in every)}
        found: list[Meeting] = []
        touched: set[int] = set()
        for stream in every:
            if now_s - self._parted_s.get(stream.id, -APART_S) < APART_S:
                continue
            for other in every:
                if other.id == stream.id or other.key != stream.key or {stream.id, other.id} & touched:
                    continue
                lanes = _meet(stream, other)
                if lanes is not None:
                    found.append(Meeting(stream.id, other.id, lanes))
                    touched |= {stream.id, other.id}
        return found


def holding_back(stream: Stream, chunk_rows: int) -> Cursor | None:
    """The job for which another one waits, if nothing but its unreleased rows is in the way."""
    if len(stream.cursors) < 2 or stream.watermark != stream.head or stream.limit - stream.head >= chunk_rows:
        return None
    if stream.cap is not None and stream.head >= stream.cap:
        return None  # it is not for the rows of any of its jobs that it rests
    low = stream.low
    slow = next((c for c in stream.cursors.values() if c.need == low and c.present), None)
    if slow is None or any(c.group == slow.group and not c.present for c in stream.cursors.values()):
        return None  # a rank that is still starting holds its siblings, and nobody is to part for that
    for cursor in stream.cursors.values():
        waits = cursor.present and cursor.next_stop > stream.head and cursor.released >= cursor.announced
        if waits and cursor.group != slow.group and cursor.need > low:
            return slow
    return None


def _meet(stream: Stream, other: Stream) -> dict[int, int] | None:
    """The lanes in which the jobs of `stream` can go on in `other` from `stream.head`, or None."""
    position = stream.head
    if stream.watermark != position or not stream.cursors or not other.cursors:
        return None
    if not all(c.present for c in stream.cursors.values()):
        return None
    low = other.low
    rows = min(lane.rows for lane in other.lanes.values())
    # Rows from `position` on must be in the other's window, or soon; and nobody may come back who is behind:
    # it would hold the others back again.
    if not low <= position <= other.head + rows // 4 or stream.low < low:
        return None
    lanes: dict[int, int] = {}
    for lane in stream.lanes.values():
        match = next((x for x in other.lanes.values() if x.key == lane.key and x.start <= position), None)
        if match is None:
            return None
        lanes[lane.id] = match.id
    largest = max(c.round_rows for c in stream.cursors.values())
    return lanes if 2 * largest <= rows else None
