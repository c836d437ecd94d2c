"""Streams that meet join, so that their rows are made once.

A stream joins another one in two cases. Streams of jobs that parted join again when the window of one reaches the head
of the other, or nearly. A stream that waits for another one, such as an early stream (`prepserver.schedule.early`),
joins it when that one arrives. A lane of a waiting stream that the other one lacks moves with its ring, so joining
needs no memory.
"""

from __future__ import annotations

from dataclasses import replace

from prepserver.protocol.work import DropLane, DropStream
from prepserver.schedule.actions import Action, GoesAlone, Joined
from prepserver.schedule.early import StreamWait, allowance, lanes_in, look
from prepserver.schedule.lag import STILL_S
from prepserver.schedule.records import ROUNDS_NEEDED
from prepserver.schedule.story import Story
from prepserver.schedule.stream import Stream
from prepserver.schedule.table import Table

APART_S = 5.0  # shortest time between parting and joining: sooner, the job would soon part again


class Meetings:
    """Joins streams that meet, and limits how long one waits for another."""

    def __init__(self, table: Table, story: Story) -> None:
        self._table = table
        self._story = story
        self._early: dict[int, StreamWait] = {}  # by stream

    @property
    def waits_for(self) -> dict[int, int]:
        """Early stream -> the stream that it waits for."""
        return {early.stream: early.into for early in self._early.values()}

    def start_early(self, stream: Stream, into: int, round_rows: int, patience_s: float) -> None:
        """Makes a new stream an early one, which joins `into` when that reaches it.

        A round of batches of its job has `round_rows` rows. The job waits at the cap for at most `patience_s`.
        """
        stream.cap = stream.head + allowance(stream.n, round_rows)
        self._early[stream.id] = StreamWait(stream.id, into, stream.head + ROUNDS_NEEDED * round_rows, patience_s)

    def would_wait(self, stream: Stream, uid: int) -> bool:
        """Whether a stream would wait for a new one of this user that begins slightly behind it."""
        jobs = self._table.jobs
        return (
            stream.cap is None
            and stream.id not in self.waits_for.values()  # its jobs have made others wait already
            and all(stream.owner(c) == uid and jobs[c.job].attach.join_wait_s > 0 for c in stream.cursors.values())
        )

    def wait_for_newcomer(self, behind: Stream) -> None:
        """Streams of one user that are at most a window ahead of a new one wait for it.

        So jobs that shared a stream share again after the daemon was restarted, in whatever order their ranks come
        back: if the new stream arrives before all ranks of a stream ahead are back, it waits for them equally long.
        """
        jobs, owners = self._table.jobs, {behind.owner(c) for c in behind.cursors.values()}
        patience_s = min(jobs[c.job].attach.join_wait_s for c in behind.cursors.values())
        for stream in self._table.streams.values():
            is_near = behind.head < stream.head and stream.low - behind.head <= stream.ring_rows
            if stream.id == behind.id or stream.key != behind.key or stream.cap is not None or not is_near:
                continue
            if {stream.owner(c) for c in stream.cursors.values()} != owners or lanes_in(stream, behind) is None:
                continue
            waits_s = min(STILL_S, patience_s, *(jobs[c.job].attach.join_wait_s for c in stream.cursors.values()))
            if waits_s > 0:
                stream.cap = stream.head  # it has more rows than the other one: all that it has given out
                self._early[stream.id] = StreamWait(stream.id, behind.id, stream.head, waits_s, holds=True)

    def share_wait(self, stream: Stream, patience_s: float) -> None:
        """Limits the wait of a stream, if it is an early one, to the patience of one more job."""
        if (early := self._early.get(stream.id)) is not None:
            early.patience_s = min(early.patience_s, patience_s)

    def meet(self, now_s: float) -> list[Action]:
        """Joins streams that parted and have met again; call it on each tick."""
        actions: list[Action] = []
        while (found := self._next_meeting(now_s)) is not None:
            actions += self._join(found)
        return actions

    def _next_meeting(self, now_s: float) -> Joined | None:
        streams = [s for s in self._table.streams.values() if s.cap is None]
        rested = [s for s in streams if s.parted_s is None or now_s - s.parted_s >= APART_S]
        for stream in rested:
            for other in rested:
                lanes = _meet(stream, other) if other.id != stream.id and other.key == stream.key else None
                if lanes is not None:
                    return Joined(stream.id, other.id, lanes)
        return None

    def lose_patience(self, now_s: float) -> list[Action]:
        """Ends waits that take too long; call it on each tick."""
        actions: list[Action] = []
        streams = self._table.streams
        for early in list(self._early.values()):
            stream, into = streams.get(early.stream), streams.get(early.into)
            if stream is not None and early.lost_patience(stream, into, now_s):
                has_arrived = into is not None and into.head >= stream.head
                late = (
                    "its jobs were not ready to join" if has_arrived else "the stream that it waited for did not arrive"
                )
                why = f"{late} in time"
                actions.append(self._go_alone(GoesAlone(stream.id, why)))
        return actions

    def join_early(self) -> list[Action]:
        """Joins early streams with those that have reached them, and ends waits that are in vain."""
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
                case Joined():
                    actions += self._join(found)
                case GoesAlone():
                    actions.append(self._go_alone(found))
                case "near":
                    waiting.cap = waiting.head
                case _:
                    pass  # they are far apart
            if into is not None and early.stream in self._early:
                # No chunk of the other stream may run past the meeting point.
                into.gate = waiting.head if into.gate is None else min(into.gate, waiting.head)
        return actions

    def _go_alone(self, alone: GoesAlone) -> Action:
        del self._early[alone.stream]
        self._table.streams[alone.stream].cap = None
        if not self._early:
            for each in self._table.streams.values():
                each.gate = None
        self._story.note(alone, alone.stream)
        return alone

    def _join(self, joined: Joined) -> list[Action]:
        stream = self._table.streams.pop(joined.stream)
        into = self._table.streams[joined.into]
        self._early.pop(stream.id, None)
        for early in self._early.values():
            if early.into == stream.id:
                early.into = into.id
        self._story.note(joined, stream.id, into.id)
        actions: list[Action] = [joined]
        moving = [stream.lanes[old] for old, new in joined.lanes.items() if old == new]
        stream.bad.rename({old: [new] for old, new in joined.lanes.items() if old != new})
        ids = {lane.id for lane in moving}
        into.bad.join(stream.bad, ids)
        for lane in moving:
            oldest = lane.start if lane.oldest is None else lane.oldest
            into.lanes[lane.id] = replace(lane, start=stream.head, oldest=oldest)
        for cursor in stream.cursors.values():
            self._table.put(cursor, into)
            if cursor.lane not in ids:
                old = stream.lanes[cursor.lane]
                actions.append(self._table.move(cursor, old, into.lanes[joined.lanes[old.id]], stream.head))
        into.rows_filled += stream.rows_filled
        into.rows_delivered += stream.rows_delivered
        into.changed()
        actions += [DropLane(lane) for lane in stream.lanes if lane not in ids]
        actions.append(DropStream(stream.id))
        return actions + into.announcements()


def _meet(stream: Stream, other: Stream) -> dict[int, int] | None:
    """The lanes of `other` in which the jobs of `stream` can continue from `stream.head`, or None."""
    position = stream.head
    if stream.watermark != position or not stream.cursors or not other.cursors:
        return None
    if not all(c.present for c in stream.cursors.values()):
        return None
    # The other stream's window must reach `position` now or soon. A job that is still behind its slowest cursor would
    # hold the others back again.
    if not other.low <= position <= other.head + other.ring_rows // 4 or stream.low < other.low:
        return None
    lanes = lanes_in(stream, other)
    return lanes if lanes is not None and all(old != new for old, new in lanes.items()) else None
