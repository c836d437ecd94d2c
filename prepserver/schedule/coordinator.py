"""Turns events into actions.

One table holds the jobs, and the streams with their lanes and cursors. These parts share it: `admission` (which place
a rank gets), `dispatch` (which chunk goes to which worker next), `twice` (late chunks), `strikes` (samples that kill
workers), `lag`, `pace` and `parting` (jobs that hold others back), `early` and `meeting` (streams that join).

The caller carries out the actions of an event in order, and all of them before the next event: a job that has joined
another stream must not be told of rows there while it still reads its old ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prepserver.protocol.work import AddLane, AddStream
from prepserver.schedule import events
from prepserver.schedule.actions import Action, Announce, End, KillWorker, MakeRing, Say
from prepserver.schedule.admission import Admission
from prepserver.schedule.asked import Orders
from prepserver.schedule.dispatch import Dispatch
from prepserver.schedule.lag import LagWatch, left_out, still_holds
from prepserver.schedule.meeting import Meetings
from prepserver.schedule.pace import slow_partings
from prepserver.schedule.parting import Partings, Steps
from prepserver.schedule.records import Job, Took
from prepserver.schedule.story import Story
from prepserver.schedule.stream import Stream
from prepserver.schedule.strikes import QUARANTINES_MOST, Strikes
from prepserver.schedule.table import Table
from prepserver.schedule.twice import Twice
from prepserver.schedule.workers import BARRED_S, SLOW_NS, TASKS_PER_WORKER, Task, Workers


class Coordinator:
    """Decides what follows from each event.

    `workers` is the size of the pool. It bounds the chunks in flight, for which a new ring has room.
    """

    def __init__(self, orders: Orders, chunk_rows: int = 16, workers: int = 1) -> None:
        self.table = Table()  # all jobs and streams; callers only read this and the next two
        self.workers = Workers(self.table.streams)  # the tasks of each worker
        self.strikes = Strikes(self.table)  # known bad samples
        self.story = Story()
        self.chunk_rows = chunk_rows  # see `Dispatch`
        self.rows_made = 0  # rows that workers have made, in all streams
        self._meetings = Meetings(self.table, self.story)
        self._partings = Partings(self.table, self.strikes, self.story)
        self._admission = Admission(
            self.table, self.strikes, self._meetings, self._partings, self.story, orders,
            workers * TASKS_PER_WORKER, chunk_rows,
        )  # fmt: skip
        self._dispatch = Dispatch(self.table, self.workers, chunk_rows, self._meetings.join_early)
        self._twice = Twice(self.table, self.workers)
        self._lag = LagWatch(chunk_rows)
        self._paused: Steps | None = None  # until the answer to `MakeRing`
        self._undone: list[Action] = []  # decided before an unforeseen error, not returned yet
        self._made: tuple[Stream, Task, Took] | None = None  # the chunk that the last event reported, for `later`
        self._handlers: dict[type[Any], Callable[[Any, float], list[Action] | Steps]] = {
            events.ChunkMade: self._chunk_made,
            events.Released: self._released,
            events.RankAsks: self._rank_asks,
            events.RankAttaches: self._rank_attaches,
            events.RankLeft: self._rank_left,
            events.WorkerUp: self._worker_up,
            events.WorkerRetires: self._worker_retires,
            events.WorkerLost: self._worker_lost,
            events.ChunkFailed: self._chunk_failed,
            events.Tick: self._tick,
        }

    def handle(self, event: events.Event, now_s: float) -> list[Action]:
        """Returns the actions that follow from an event at `now_s` of a monotonic clock."""
        self.story.now_s = now_s
        if self._paused is not None:
            assert isinstance(event, events.RingMade | events.RingRefused), "the answer about a ring is the next event"
            return self._run(self._paused, event)
        found = self._handlers[type(event)](event, now_s)
        return found if isinstance(found, list) and not self._undone else self._run(found, None)

    def later(self) -> Iterator[Action]:
        """The less urgent actions that follow from the last event; call it when the others are carried out.

        `handle` only announces a finished chunk, because jobs wait for it. This method does the rest: it counts the
        cost and gives out the next chunks. Meanwhile the worker usually has another task queued.
        """
        if self._made is None:
            return
        (stream, task, took), self._made = self._made, None
        self.rows_made += task.chunk.count
        if stream.failed or stream.quarantines:
            for lane in (None, *task.chunk.lanes):
                stream.failed.pop(lane, None)
            for lane in task.chunk.lanes:
                stream.quarantines.pop(lane, None)
        stream.took(task.chunk, took, decoded=task.decodes)
        # A stream is not charged for the minute in which its worker was suspended.
        stream.served_ns += min(took.wall_ns, 2 * task.foreseen_ns + SLOW_NS) - task.foreseen_ns
        self.strikes.acquit(stream, task.chunk)
        yield from self._dispatch.give_out()

    def _run(self, steps: list[Action] | Steps, answer: events.RingMade | events.RingRefused | None) -> list[Action]:
        self._paused = None
        actions, self._undone = self._undone, []
        if isinstance(steps, list):
            return actions + steps
        try:
            action = steps.send(answer)
            while True:
                actions.append(action)
                if isinstance(action, MakeRing):
                    self._paused = steps
                    return actions
                action = next(steps)
        except StopIteration:
            return actions
        except BaseException:
            self._undone = actions  # the table contains them already, so the next event returns them
            raise

    @property
    def waits_for(self) -> dict[int, int]:
        """Early stream -> the stream that it waits for."""
        return self._meetings.waits_for

    def setup(self) -> list[AddStream | AddLane]:
        """The messages that tell a new worker of all streams and lanes."""
        found: list[AddStream | AddLane] = []
        for stream in self.table.streams.values():
            found.append(self.strikes.told(stream.spec, stream.source))
            found += [self._partings.add_lane(stream, lane) for lane in stream.lanes.values()]
        return found

    def source_of(self, task: int) -> str | None:
        """Digest of the source whose rows a task makes; None if no job needs them any more."""
        known = self.workers.tasks.get(task)
        stream = self.table.streams.get(known.stream) if known is not None else None
        return None if stream is None else stream.source

    # -- ranks --------------------------------------------------------------------------------------

    def _rank_attaches(self, event: events.RankAttaches, now_s: float) -> Steps:
        self.strikes.set_known(event.listing.digest, event.known_bad)
        yield from self._admission.attach(event, now_s)
        yield from self._dispatch.give_out()

    def _rank_left(self, event: events.RankLeft, _now_s: float) -> list[Action]:
        if not self.table.knows(event.cursor):
            return []  # it has ended already
        self.story.note(event, self.table.stream_of(event.cursor).id)
        return self._admission.leave(event.cursor) + self._dispatch.give_out()

    def _released(self, event: events.Released, _now_s: float) -> list[Action]:
        if not self.table.knows(event.cursor):
            return []
        stream = self.table.stream_of(event.cursor)
        cursor = stream.cursors[event.cursor]
        most = cursor.line.peek().start
        if event.upto > most:
            text = f"released up to {event.upto}, but only rows below {most} were announced"
            return self._end([cursor.id], "protocol", text + self.story.of(stream.id), None)
        cursor.note_release(event.wait_ns, event.batches)
        if event.upto <= cursor.released:
            return []  # out of date
        before = cursor.first_needed
        cursor.released = event.upto
        if not stream.advanced(cursor, before):
            return []
        if stream.bad:
            # `low` would be too high: a job that has moved here may still ask about rows in its old ring.
            stream.bad.forget_below(min(c.released for c in stream.cursors.values()))
        return self._dispatch.give_out()

    def _rank_asks(self, event: events.RankAsks, _now_s: float) -> list[Action]:
        if not self.table.knows(event.cursor):
            return []
        stream = self.table.stream_of(event.cursor)
        cursor = stream.cursors[event.cursor]
        cursor.note_sync()
        bad = stream.bad.between(cursor.lane, cursor.released, cursor.announced)
        return [Announce(cursor.id, cursor.announced, bad, cursor.moves)] if event.reads else []

    def _end(self, cursors: Iterable[int], code: str, text: str, field: str | None) -> list[Action]:
        actions: list[Action] = []
        for cursor in cursors:
            actions += [End(cursor, code, text[:4000], field), *self._admission.leave(cursor)]
        return actions + self._dispatch.give_out()

    # -- workers ------------------------------------------------------------------------------------

    def _worker_up(self, event: events.WorkerUp, _now_s: float) -> list[Action]:
        self.story.note(event)
        self.workers.up(event.worker)
        return self._dispatch.give_out()

    def _worker_retires(self, event: events.WorkerRetires, _now_s: float) -> list[Action]:
        self.story.note(event)
        self.workers.retire(event.worker)
        return []  # the next tick ends it if it has no task

    def _chunk_made(self, event: events.ChunkMade, _now_s: float) -> list[Action]:
        task = self.workers.end(event.worker, event.task)
        stream = None if task is None else self.table.streams.get(task.stream)
        if task is None or stream is None:
            return self._dispatch.give_out()
        self._made = stream, task, event.took
        return self._twice.made(stream, task, event.bad)

    def _chunk_failed(self, event: events.ChunkFailed, now_s: float) -> list[Action]:
        task = self.workers.end(event.worker, event.task)
        stream = None if task is None else self.table.streams.get(task.stream)
        if task is None or stream is None:
            return self._dispatch.give_out()
        self.story.note(event, stream.id)
        stream.chunks.lost(task.chunk.position, task.chunk.count)
        if event.elsewhere:  # workers of this machine find out whether the jobs must end
            is_new = self.workers.bar(event.worker, stream.id, event.reason, now_s)
            text = f"{event.reason}. Others make its rows of stream {stream.id}; it tries again every {BARRED_S:.0f} s"
            return ([Say("error", text)] if is_new else []) + self._dispatch.give_out()
        actions: list[Action] = [Say("error", f"a worker could not run a task: {event.reason}")]
        if self.strikes.failed(stream, event.lane):
            actions += self._give_up(stream, event.lane, event.reason)
        return actions + self._dispatch.give_out()

    def _give_up(self, stream: Stream, lane: int | None, reason: str) -> list[Action]:
        """Ends the jobs of a lane that cannot be computed, or of a stream that cannot be read."""
        code, what = ("source", "these rows") if lane is None else ("spec", "the rows of this pipeline")
        text = f"the workers cannot make {what}: {reason}{self.story.of(stream.id, reason)}"
        ended = [c.id for c in stream.cursors.values() if lane in (None, c.lane) and c.present]
        return self._end(ended, code, text, None if lane is None else "pipeline")

    def _worker_lost(self, event: events.WorkerLost, _now_s: float) -> list[Action]:
        lose = self.workers.give_up if event.stuck else self.workers.lose
        tasks = lose(event.worker)
        self.story.note(event, *{task.stream for task in tasks})
        oldest = tasks[0] if tasks else None
        actions = self.strikes.blame(oldest, event.suspect, event.strikes, stuck=event.stuck)
        for task in tasks:
            actions += self._twice.ended(task)
        lane = None if event.suspect is None else event.suspect.lane
        stream = None if oldest is None else self.table.streams.get(oldest.stream)
        if stream is not None and lane is not None and stream.quarantines[lane] >= QUARANTINES_MOST:
            reason = f"workers died or hung in its ops at {QUARANTINES_MOST} samples, and made no chunk in between"
            actions += self._give_up(stream, lane, reason)
        return actions + self._dispatch.give_out()

    # -- time ---------------------------------------------------------------------------------------

    def _tick(self, _event: events.Tick, now_s: float) -> Steps:
        """Parts jobs that hold others back, joins streams that meet, duplicates late chunks."""
        streams = self.table.streams
        yield from map(KillWorker, self.workers.retired)
        self.workers.unbar(now_s)
        yield from self._admission.give_up_absent(now_s)
        yield from self._dispatch.give_out()
        for parting in self._lag.partings(streams.values(), self.workers.idle_for, now_s):
            if still_holds(parting, streams, self.chunk_rows):
                # If these ranks attach later, they get a separate stream.
                yield from self._admission.give_up(left_out(parting, streams[parting.stream]))
                yield from self._dispatch.give_out()
            if still_holds(parting, streams, self.chunk_rows):
                yield from self._partings.part(parting, now_s)
                yield from self._dispatch.give_out()
        for stream in list(streams.values()):
            for parting in slow_partings(stream):
                if stream.id not in streams:
                    break  # its jobs have joined another one in the meantime
                yield from self._partings.part(parting, now_s)
                yield from self._dispatch.give_out()
        yield from self._meetings.meet(now_s)
        yield from self._meetings.lose_patience(now_s)
        self._twice.look(now_s)
        yield from self._dispatch.give_out()

    def job_of(self, cursor: int) -> Job:
        """The job that a rank belongs to; `KeyError` if there is no such rank."""
        return self.table.jobs[self.table.cursor(cursor).job]
