"""Jobs of different speed: which hold others back, and which may part. Pure.

A slow job fills the window of its stream: rows that it has not released cannot be refilled, so the others wait.
Parting gives it a separate stream that continues from the same position with the same bytes. The rows that it still
holds stay valid, so the jobs that remain get a new ring. A job comes back when its stream meets another one of the same
key.

A job's `lag` policy applies only among jobs of one user. A job that holds back another user's job parts from it under
any policy, even if some of its ranks have not attached yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from prepserver.protocol.messages import SYNC_AFTER_S
from prepserver.schedule.records import Cursor
from prepserver.schedule.stream import Stream

PATIENCE_S = 2.0  # how long a job may hold others back in total: longer than most checkpoints take

FORGIVEN = 0.25
"""Fraction of well-behaved time that a job earns back as patience. So a job that costs the others more than a fifth of
their time parts sooner or later, and one that stalls now and then does not."""

IGNORED_REPORTS = 2
"""Ignore this many wait reports after a job joins: they lag by one batch and may describe its previous stream."""

STILL_S = 10.0
"""A stream stands still if its slowest job has released nothing for this long. Before that, jobs that have just joined
do not count as waiting for each other, because the rows between them are being read."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Jobs of `uid` part for good because their pipelines are slow (`prepserver.schedule.pace`)."""

    uid: int  # user of the jobs
    sample_ns: float  # CPU time of their pipelines for a sample
    rest_ns: float  # CPU time of reading, decoding and all remaining pipelines for a sample

    def __str__(self) -> str:
        return (
            f" (uid {self.uid}: its pipeline takes {self.sample_ns / 1e6:.1f} ms of CPU time a sample; reading, "
            f"decoding and all other pipelines take {self.rest_ns / 1e6:.1f} ms)"
        )


@dataclass(frozen=True, slots=True)
class Parting:
    """Jobs that hold others back and may part."""

    stream: int  # the stream that they leave
    jobs: tuple[int, ...]  # one job and those that stopped beside it, or all jobs that read some lanes
    strangers: bool = False  # whether they hold back jobs of other users
    apart: Apart | None = None  # why they may not come back; None if they may


@dataclass(slots=True)
class _Wait:
    """The time that a rank has spent in `next()`."""

    stream: int  # the stream that it reads
    here_s: float = 0.0  # time since it joined, which no wait here can exceed
    batches: int = 0  # batches in its last report
    total_s: float = 0.0  # total time in `next()`
    waits: bool = False  # whether it waits now
    ignored: int = 0  # reports since it joined, counted up to `IGNORED_REPORTS`


@dataclass(slots=True)
class _Held:
    """The delay that a job has caused; it parts when both times exceed `PATIENCE_S`."""

    full_s: float = 0.0  # time for which its unreleased rows filled the window
    # How long another job reported waiting meanwhile. A job that is a window ahead looks as if it waits, but does not
    # report it.
    waited_s: float = 0.0

    def forgive(self, passed_s: float) -> None:
        self.full_s = max(0.0, self.full_s - FORGIVEN * passed_s)
        self.waited_s = max(0.0, self.waited_s - FORGIVEN * passed_s)

    def count(self, passed_s: float, waited_s: float) -> None:
        self.full_s += (1 + FORGIVEN) * passed_s
        self.waited_s += (1 + FORGIVEN) * waited_s


class LagWatch:
    """Watches which jobs hold others back. A window without room for a chunk, of `chunk_rows` rows, counts as full."""

    def __init__(self, chunk_rows: int) -> None:
        self._chunk_rows = chunk_rows
        self._held: dict[tuple[int, int], _Held] = {}  # by (stream, job)
        self._waits: dict[int, _Wait] = {}  # by cursor
        self._moved: dict[int, tuple[int, float]] = {}  # stream -> (its `low`, since when)
        self._last_s: float | None = None

    def partings(self, streams: Iterable[Stream], idle_for: Callable[[int], bool], now_s: float) -> list[Parting]:
        """Jobs that have held others back for `PATIENCE_S`; call it several times a second.

        The policy ``auto`` means ``detach`` while `idle_for` says that a worker is idle for the stream, else ``wait``.
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

        def waits(cursor: Cursor) -> bool:
            return (cursor.lag if cursor.lag != "auto" else ("detach" if idle_for(stream.id) else "wait")) == "wait"

        for stream in every:
            is_still = now_s - self._moved[stream.id][1] >= STILL_S
            for slow, others in holding_back(stream, self._chunk_rows, is_still=is_still):
                strangers = [c for c in others if stream.owner(c) != stream.owner(slow)]
                if waits(slow):
                    if not strangers:
                        continue
                    others = strangers
                held = self._held.setdefault((stream.id, slow.job), _Held())
                held.count(passed_s, max(waited_s[cursor.id] for cursor in others))
                if min(held.full_s, held.waited_s) >= PATIENCE_S:
                    beside = {c.job for c in _stopped_beside(slow, others, stream) if not waits(c)}
                    for job in (slow.job, *beside):
                        self._held.pop((stream.id, job), None)
                    found.append(Parting(stream.id, (slow.job, *sorted(beside)), bool(strangers)))
        return found

    def _waited(self, streams: list[Stream], passed_s: float) -> dict[int, float]:
        """Time in `next()` that was reported since the last call, by cursor.

        A client reports its total with each Release, one batch late, and sends Sync while it gets nothing.
        """
        before, self._waits = self._waits, {}
        found: dict[int, float] = {}
        for stream in streams:
            for cursor in stream.cursors.values():
                last = before.get(cursor.id, _Wait(stream.id))
                if last.stream != stream.id:
                    last = replace(last, stream=stream.id, here_s=0.0, ignored=0)
                now = replace(last, here_s=last.here_s + passed_s, batches=cursor.batches, waits=cursor.asked_in_vain)
                if cursor.asked_in_vain:
                    now.total_s += passed_s if last.waits else min(SYNC_AFTER_S, now.here_s)
                now.total_s = max(now.total_s, cursor.wait_ns / 1e9)
                ignores = cursor.batches != last.batches and last.ignored < IGNORED_REPORTS
                now.ignored += ignores
                self._waits[cursor.id] = now
                found[cursor.id] = 0.0 if ignores else now.total_s - last.total_s
        return found

    def _still_since(self, stream: Stream, now_s: float) -> tuple[int, float]:
        low, since_s = self._moved.get(stream.id, (-1, now_s))
        return (low, since_s) if low == stream.low else (stream.low, now_s)


def holding_back(stream: Stream, chunk_rows: int, *, is_still: bool) -> list[tuple[Cursor, list[Cursor]]]:
    """The jobs whose unreleased rows alone fill the window: a rank of each, and the cursors that it holds back.

    Jobs of the same user wait for ranks that have not attached yet; jobs of other users do not. A window without
    room for a chunk, of `chunk_rows` rows or fewer large ones, counts as full. `is_still` says whether the stream has
    stood still for `STILL_S`.
    """
    room = stream.limit - stream.head
    if len(stream.cursors) < 2 or stream.watermark != stream.head or room >= stream.chunk_rows(chunk_rows):
        return []
    if stream.cap is not None and stream.head >= stream.cap:
        return []  # an early stream at its cap: no job fills the window
    cursors = list(stream.cursors.values())
    low = stream.low
    first = next((c for c in cursors if c.first_needed == low and c.present), None)
    incomplete = {c.job for c in cursors if not c.present}
    found: dict[int, tuple[Cursor, list[Cursor]]] = {}
    for slow in cursors:
        if slow.first_needed > low or slow.job in found:
            continue
        if slow.has_released_all and slow.first_needed == slow.released:
            continue  # it holds no row: something else fills the window, such as a worker that does not end
        if slow.first_needed < stream.lanes[slow.lane].start and not is_still:
            continue  # it joined with its ring and still reads the rows in it
        others = [
            c
            for c in cursors
            if c.present
            and c.job != slow.job
            and c.first_needed > low
            and c.next_stop > stream.head
            # a job that has not reached its start position does not count as waiting
            and (c.first_needed <= stream.head or is_still)
        ]
        if slow is not first or slow.job in incomplete:
            others = [c for c in others if stream.owner(c) != stream.owner(slow)]
        if others:
            found[slow.job] = (slow, others)
    return list(found.values())


def _stopped_beside(slow: Cursor, others: list[Cursor], stream: Stream) -> list[Cursor]:
    """Ranks of the same user that hold `others` back just as `slow` does: of notebooks that are open, for example.

    If each parted by itself, the others would wait once for each of them, and all would get as many new rings.
    """
    found = [
        c
        for c in stream.cursors.values()
        if c.job != slow.job
        and stream.owner(c) == stream.owner(slow)
        and c.present
        and c.first_needed <= slow.first_needed
        and not (c.asked_in_vain or c.has_released_all)
    ]
    jobs = {c.job for c in found}
    incomplete = {c.job for c in stream.cursors.values() if not c.present}
    stay = any(c.job not in jobs for c in others)  # or nobody would be left whom they hold back
    return [c for c in found if c.job not in incomplete] if stay else []


def still_holds(parting: Parting, streams: Mapping[int, Stream], chunk_rows: int) -> bool:
    """Whether a parting is still needed after the other partings of the same tick."""
    stream = streams.get(parting.stream)
    held = [] if stream is None else holding_back(stream, chunk_rows, is_still=True)
    return any(slow.job in parting.jobs for slow, _ in held)


def left_out(parting: Parting, stream: Stream) -> list[Cursor]:
    """Absent ranks of staying jobs that need rows of the old ring.

    They would lose these rows: jobs that stay get a new ring without the rows made so far, and a rank that attaches
    later gets only the new ring.
    """
    lanes = {c.lane for c in stream.cursors.values() if c.job in parting.jobs}
    return [
        c
        for c in stream.cursors.values()
        if not c.present and c.job not in parting.jobs and c.lane in lanes and c.first_needed < stream.head
    ]
