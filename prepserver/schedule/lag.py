"""Jobs of different speed: which of them hold others back.

A slow job fills the window of its stream: the rows that it has not released cannot be refilled, and the others wait.
Then it may part (`prepserver.schedule.parting`), and meets them again later (`prepserver.schedule.meeting`).

A job's own policy counts only among its user's jobs. Where it holds back another user's job it parts from that one,
whatever its policy is, and also while some of its ranks have not attached yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from prepserver.schedule.records import Cursor
from prepserver.schedule.stream import Stream

PATIENCE_S = 2.0
"""How long a job may hold others back, in all: most pauses for a checkpoint are shorter."""

FORGIVEN = 0.25
"""Fraction of well-behaved time earned back as patience. So a job that costs the others more than a fifth of their time
parts from them in the end, and one that stumbles now and then does not."""

ASKS_AFTER_S = 2.0
"""How long a client is in `next()` before it first asks for more."""

STRANGE = 2
"""Ignore this many wait reports after a job joins: they lag by one batch and may describe its previous stream."""

STILL_S = 10.0
"""A stream stands still if no row of it is released for this long. Before, a job that has just come, and has not
reached its place, does not count as waiting."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Why jobs part for good: their pipelines are slow (`prepserver.schedule.pace`), not their reading.

    Attributes:
        uid: Their user.
        sample_ns: CPU time that their pipelines take for a sample.
        rest_ns: CPU time that reading, decoding and all other pipelines take for one.
    """

    uid: int
    sample_ns: float
    rest_ns: float


@dataclass(frozen=True, slots=True)
class Parting:
    """Jobs that hold others back and may part.

    Attributes:
        stream: The stream that they leave.
        jobs: One job, or all that read some lanes.
        strangers: Whether they hold back jobs of other users.
        apart: Why they may not come back; None if they may.
    """

    stream: int
    jobs: tuple[int, ...]
    strangers: bool = False
    apart: Apart | None = None


@dataclass(slots=True)
class _Wait:
    """What is known of the time that a rank has spent in `next()`.

    Attributes:
        stream: The stream that it reads.
        here_s: How long it has read that: no wait of it there is longer.
        batches: Batches, by its last report.
        total_s: All of its time in `next()`.
        waits: Whether it waits now.
        heard: Its reports since it came, counted up to `STRANGE`.
    """

    stream: int
    here_s: float = 0.0
    batches: int = 0
    total_s: float = 0.0
    waits: bool = False
    heard: int = 0


@dataclass(slots=True)
class _Held:
    """What is held against a job: both must use up its patience.

    Attributes:
        full_s: Time in which its unreleased rows filled the window.
        waited_s: Time for which another job waited then, as that job reports. The window alone does not say: a job that
            is a window ahead and takes its batches at once has all that it wants.
    """

    full_s: float = 0.0
    waited_s: float = 0.0

    def forgive(self, passed_s: float) -> None:
        self.full_s = max(0.0, self.full_s - FORGIVEN * passed_s)
        self.waited_s = max(0.0, self.waited_s - FORGIVEN * passed_s)

    def count(self, passed_s: float, waited_s: float) -> None:
        self.full_s += (1 + FORGIVEN) * passed_s
        self.waited_s += (1 + FORGIVEN) * waited_s


class LagWatch:
    """Notices, over time, who holds others back.

    Args:
        chunk_rows: See `Dispatch`: a window with room for less counts as full.
    """

    def __init__(self, chunk_rows: int) -> None:
        self._chunk_rows = chunk_rows
        self._held: dict[tuple[int, int], _Held] = {}  # by (stream, job)
        self._waits: dict[int, _Wait] = {}  # by cursor
        self._moved: dict[int, tuple[int, float]] = {}  # stream -> (its `low`, since when)
        self._last_s: float | None = None

    def partings(self, streams: Iterable[Stream], workers_idle: bool, now_s: float) -> list[Parting]:
        """Jobs whose patience is used up. Call it several times a second.

        Args:
            streams: All streams.
            workers_idle: Whether a worker has nothing to do, which decides for `auto`.
            now_s: Monotonic.
        """
        every = list(streams)
        found: list[Parting] = []
        passed_s = now_s - (now_s if self._last_s is None else self._last_s)
        self._last_s = now_s
        waited_s = self._waited(every, passed_s)
        self._moved = {stream.id: self._still_since(stream, now_s) for stream in every}
        for held in self._held.values():
            held.forgive(passed_s)
        self._held = {key: held for key, held in self._held.items() if held.full_s > 0 or held.waited_s > 0}
        for stream in every:
            is_still = now_s - self._moved[stream.id][1] >= STILL_S
            for slow, others in holding_back(stream, self._chunk_rows, is_still=is_still):
                strangers = [c for c in others if stream.owner(c) != stream.owner(slow)]
                policy = slow.lag if slow.lag != "auto" else ("detach" if workers_idle else "wait")
                if policy == "wait":
                    if not strangers:
                        continue
                    others = strangers
                held = self._held.setdefault((stream.id, slow.job), _Held())
                held.count(passed_s, max(waited_s[cursor.id] for cursor in others))
                if min(held.full_s, held.waited_s) >= PATIENCE_S:
                    del self._held[stream.id, slow.job]
                    found.append(Parting(stream.id, (slow.job,), bool(strangers)))
        return found

    def _waited(self, streams: list[Stream], passed_s: float) -> dict[int, float]:
        """Time in `next()` that has become known since the last call, by cursor.

        A client says its sum with what it releases, so a batch late, and where it gets nothing it asks for more.
        """
        before, self._waits = self._waits, {}
        found: dict[int, float] = {}
        for stream in streams:
            for cursor in stream.cursors.values():
                last = before.get(cursor.id, _Wait(stream.id))
                if last.stream != stream.id:
                    last = replace(last, stream=stream.id, here_s=0.0, heard=0)
                now = replace(last, here_s=last.here_s + passed_s, batches=cursor.batches, waits=cursor.waits)
                if cursor.waits:
                    now.total_s += passed_s if last.waits else min(ASKS_AFTER_S, now.here_s)
                now.total_s = max(now.total_s, cursor.wait_ns / 1e9)
                is_strange = cursor.batches != last.batches and last.heard < STRANGE
                now.heard += is_strange
                self._waits[cursor.id] = now
                found[cursor.id] = 0.0 if is_strange else now.total_s - last.total_s
        return found

    def _still_since(self, stream: Stream, now_s: float) -> tuple[int, float]:
        low, since_s = self._moved.get(stream.id, (-1, now_s))
        return (low, since_s) if low == stream.low else (stream.low, now_s)


def holding_back(stream: Stream, chunk_rows: int, *, is_still: bool) -> list[tuple[Cursor, list[Cursor]]]:
    """The jobs whose unreleased rows fill the window, if nothing else is in the way: a rank of each, and whom it holds.

    The jobs of its own user wait for ranks of it that have not attached yet, those of other users do not.

    Args:
        stream: Which.
        chunk_rows: With room for fewer rows, its window counts as full.
        is_still: Whether it has not moved for `STILL_S`.
    """
    if len(stream.cursors) < 2 or stream.watermark != stream.head or stream.limit - stream.head >= chunk_rows:
        return []
    if stream.cap is not None and stream.head >= stream.cap:
        return []  # it is not for the rows of any of its jobs that it rests
    cursors = list(stream.cursors.values())
    low = stream.low
    first = next((c for c in cursors if c.need == low and c.present), None)
    incomplete = {c.job for c in cursors if not c.present}
    found: dict[int, tuple[Cursor, list[Cursor]]] = {}
    for slow in cursors:
        if slow.need > low or slow.job in found:
            continue
        if slow.waits_now and slow.need == slow.released:
            continue  # it holds no row: what else keeps the window shut (a worker that does not die) is not its doing
        if slow.need < stream.lanes[slow.lane].start and not is_still:
            continue  # it came with its ring, and reads what it brought
        others = [
            c
            for c in cursors
            if c.present
            and c.job != slow.job
            and c.need > low
            and c.next_stop > stream.head
            # whose place is still to come waits for the stream to come by, and for nobody in it
            and (c.need <= stream.head or is_still)
        ]
        if slow is not first or slow.job in incomplete:
            others = [c for c in others if stream.owner(c) != stream.owner(slow)]
        if others:
            found[slow.job] = (slow, others)
    return list(found.values())


def still_holds(parting: Parting, streams: Mapping[int, Stream], chunk_rows: int) -> bool:
    """Whether a parting is still called for, after others that were found along with it."""
    stream = streams.get(parting.stream)
    held = [] if stream is None else holding_back(stream, chunk_rows, is_still=True)
    return any(slow.job in parting.jobs for slow, _ in held)


def left_out(parting: Parting, stream: Stream) -> list[Cursor]:
    """Absent ranks of other jobs whose rows a parting would leave in a ring that they will never see.

    Jobs that stay get a new ring, which has only what comes; who is there still has the old one.
    """
    lanes = {c.lane for c in stream.cursors.values() if c.job in parting.jobs}
    return [
        c
        for c in stream.cursors.values()
        if not c.present and c.job not in parting.jobs and c.lane in lanes and c.need < stream.head
    ]
