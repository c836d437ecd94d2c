"""Streams that meet: their jobs go on together, and what they read is made once.

Two kinds of streams do: those that parted and stand at one place again, and early ones (`prepserver.schedule.early`),
which wait for the one that they are to join. A lane that the other stream lacks goes along with its ring, so a meeting
needs no memory.
"""

from __future__ import annotations

from dataclasses import replace

from prepserver.schedule.actions import Action, DropLane, DropStream, GoesAlone, Joined
from prepserver.schedule.early import LEAST_ROUNDS, Alone, Early, Near, allowance, look
from prepserver.schedule.records import Meeting
from prepserver.schedule.story import Story
from prepserver.schedule.stream import Stream
from prepserver.schedule.table import Table

APART_S = 5.0
"""How long a job stays parted at least: it would only part again."""


class Meetings:
    """See the module."""

    def __init__(self, table: Table, story: Story) -> None:
        self._table = table
        self._story = story
        self._early: dict[int, Early] = {}  # by stream

    @property
    def waits_for(self) -> dict[int, int]:
        """Early stream -> the one that it is to join."""
        return {early.stream: early.into for early in self._early.values()}

    def start_early(self, stream: Stream, into: int, round_rows: int, patience_s: float) -> None:
        """A new stream goes only so far, and is to join another one when that comes by.

        Args:
            stream: The new one.
            into: The other one.
            round_rows: ``batch_size * world_size`` of its job.
            patience_s: The longest time that the job may wait there.
        """
        stream.cap = stream.head + allowance(stream.n, round_rows)
        self._early[stream.id] = Early(stream.id, into, stream.head + LEAST_ROUNDS * round_rows, patience_s)

    def share_wait(self, stream: Stream, patience_s: float) -> None:
        """Another job is to read a stream, which may be an early one: it waits for no longer than each of them may."""
        if (early := self._early.get(stream.id)) is not None:
            early.patience_s = min(early.patience_s, patience_s)

    def meet(self, now_s: float) -> list[Action]:
        """Joins streams that parted and can go on together. Call it several times a second."""
        actions: list[Action] = []
        while (found := self._next_meeting(now_s)) is not None:
            actions += self._join(found)
        return actions

    def _next_meeting(self, now_s: float) -> Meeting | None:
        streams = [s for s in self._table.streams.values() if s.cap is None]
        rested = [s for s in streams if s.parted_s is None or now_s - s.parted_s >= APART_S]
        for stream in rested:
            for other in rested:
                lanes = _meet(stream, other) if other.id != stream.id and other.key == stream.key else None
                if lanes is not None:
                    return Meeting(stream.id, other.id, lanes)
        return None

    def lose_patience(self, now_s: float) -> list[Action]:
        """Ends waits for other streams that take too long. Call it several times a second."""
        actions: list[Action] = []
        streams = self._table.streams
        for early in list(self._early.values()):
            stream = streams.get(early.stream)
            if stream is not None and early.lost_patience(stream, streams.get(early.into), now_s):
                actions.append(self._go_alone(early, "the stream that it waited for has not come by in time"))
        return actions

    def join_early(self) -> list[Action]:
        """Joins early streams with those that have come by, and ends waits that lead nowhere."""
        actions: list[Action] = []
        if not self._early:
            return actions
        streams = self._table.streams
        for stream in streams.values():
            stream.gate = None
        for early in list(self._early.values()):
            waiting = streams.get(early.stream)
            if waiting is None:
                del self._early[early.stream]
                continue
            into = streams.get(early.into)
            found = look(early, waiting, into)
            match found:
                case Meeting():
                    actions += self._join(found)
                case Alone(why):
                    actions.append(self._go_alone(early, why))
                case Near():
                    waiting.cap = waiting.head
                case None:
                    pass
            if into is not None and early.stream in self._early:
                # not past it unseen, with a chunk that begins before
                into.gate = waiting.head if into.gate is None else min(into.gate, waiting.head)
        return actions

    def _go_alone(self, early: Early, why: str) -> Action:
        del self._early[early.stream]
        stream = self._table.streams[early.stream]
        stream.cap = None
        if not self._early:
            for each in self._table.streams.values():
                each.gate = None
        alone = GoesAlone(early.stream, why)
        self._story.note(alone, early.stream)
        return alone

    def _join(self, meeting: Meeting) -> list[Action]:
        stream = self._table.streams.pop(meeting.stream)
        into = self._table.streams[meeting.into]
        self._early.pop(stream.id, None)
        for early in self._early.values():
            if early.into == stream.id:
                early.into = into.id
        joined = Joined(stream.id, into.id, meeting.lanes)
        self._story.note(joined, stream.id, into.id)
        actions: list[Action] = [joined]
        along = [stream.lanes[old] for old, new in meeting.lanes.items() if old == new]
        stream.bad.rename({old: [new] for old, new in meeting.lanes.items() if old != new})
        if along:
            into.bad.name_lanes(into.lanes_at)
            stream.bad.name_lanes(stream.lanes_at, meeting.lanes)
        ids = {lane.id for lane in along}
        into.bad.join(stream.bad, ids)
        for lane in along:
            oldest = lane.start if lane.oldest is None else lane.oldest
            into.lanes[lane.id] = replace(lane, start=stream.head, oldest=oldest)
        for cursor in stream.cursors.values():
            self._table.put(cursor, into)
            if cursor.lane not in ids:
                old = stream.lanes[cursor.lane]
                actions.append(self._table.move(cursor, old, into.lanes[meeting.lanes[old.id]], stream.head))
        into.rows_filled += stream.rows_filled
        into.rows_delivered += stream.rows_delivered
        into.changed()
        actions += [DropLane(lane) for lane in stream.lanes if lane not in ids]
        actions.append(DropStream(stream.id))
        return actions + into.announcements()


def _meet(stream: Stream, other: Stream) -> dict[int, int] | None:
    """The lanes in which the jobs of `stream` can go on in `other` from `stream.head`, or None."""
    position = stream.head
    if stream.watermark != position or not stream.cursors or not other.cursors:
        return None
    if not all(c.present for c in stream.cursors.values()):
        return None
    low = other.low
    rows = min(lane.rows for lane in other.lanes.values())
    # Rows from `position` on must be in the other's window, or soon; and no job may come back that is slower by so
    # much: it would hold the others back again.
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
