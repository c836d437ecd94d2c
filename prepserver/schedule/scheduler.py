"""The scheduler: streams, their cursors and the workers that fill them.

Every event method returns the actions that it led to, in order. Ids are given by the caller.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from prepserver.pipeline.batches import BatchLine
from prepserver.protocol.work import MAX_CHUNK_ROWS
from prepserver.schedule.actions import (
    Action,
    Announce,
    DropLane,
    DropStream,
    GoesAlone,
    Joined,
    KillWorker,
    Move,
    QuarantineSample,
    Submit,
)
from prepserver.schedule.early import LEAST_ROUNDS, Alone, Early, Near, allowance, look
from prepserver.schedule.lag import HEDGE_S, Meeting
from prepserver.schedule.stream import BadRow, Chunk, Cursor, Lane, Stream, Took

STRIKES_OUT = 6
"""A sample with so many strikes is not tried again. It loses them when it is made after all."""

CRASH_STRIKES = 3
"""The worker crashed on it or took too long: twice is no bad luck."""

KILL_STRIKES = 2
"""The worker was killed from outside while it was at it: the kernel out of memory, or anybody at all."""

TASKS_PER_WORKER = 2
"""One running and one queued: the queued one hides the round trip, more would only blur who has what."""


@dataclass(slots=True)
class WorkerSlot:
    """A worker and the tasks that it holds, oldest first; how many of them are to take longer than `SLOW_NS`."""

    id: int
    tasks: list[int] = field(default_factory=list)
    slow_tasks: int = 0


@dataclass(slots=True)
class Task:
    """A chunk in a worker's hands."""

    stream: int
    chunk: Chunk
    worker: int
    since_s: float | None = None
    hedged: bool = False
    foreseen_ns: int = 0


SETTLED_CHUNKS = 64
"""So many chunks after its first row, a stream is given out in larger ones: what costs the daemon is to be woken."""

GROWN = (4, 2)
"""How many times larger: the first for which there is room."""

SLOW_NS = 500_000_000
"""No chunk is to take longer if it can have fewer rows (views of photos of 12 megapixels, a slow disk, a slow
pipeline): others wait for it. Ten times what an ordinary chunk of 64 rows takes. Nothing is queued behind one that
takes longer all the same: the job that waits for it may be another user's."""

TURN_NS = 250_000_000
"""Streams for which workers have spent the same time, but for so much, are served by what their jobs have ready."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """What a worker was at when it died.

    Attributes:
        index: The sample.
        lane: Whose row was being rendered; None while the sample was read and decoded, which is for all.
    """

    index: int
    lane: int | None = None


class ReleaseError(ValueError):
    """A client released rows that it was never told of."""


class Scheduler:
    """See the module.

    Args:
        chunk_rows: Rows in a chunk, up to four times as many once a stream has got going. Small chunks spread a batch
            over the workers (a short wait for the first batch), large ones cost fewer messages.
    """

    def __init__(self, chunk_rows: int = 16) -> None:
        self.chunk_rows = chunk_rows
        self.streams: dict[int, Stream] = {}
        self.workers: dict[int, WorkerSlot] = {}
        # by source and pipeline, which is empty for samples that are bad for all
        self.quarantined: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._strikes: defaultdict[tuple[str, str, int], int] = defaultdict(int)  # by source, pipeline, sample
        # (stream, start of a chunk) -> samples with strikes, and in which pipelines
        self._suspects: dict[tuple[int, int], set[tuple[str, int]]] = {}
        self._tasks: dict[int, Task] = {}
        self._hedged: set[tuple[int, int]] = set()  # (stream, start) of chunks given out twice, not made yet
        self._made: dict[tuple[int, int], list[BadRow]] = {}  # chunks made by one of two, while the other ends
        self._task_ids = itertools.count(1)
        self._served = itertools.count(1)
        self._turn_ns = 0  # what each stream was given that always wanted something, in whole turns
        self._stream_of: dict[int, int] = {}  # cursor -> stream
        self._free: list[dict[int, WorkerSlot]] = [{} for _ in range(TASKS_PER_WORKER)]  # by tasks held
        self._early: dict[int, Early] = {}  # by stream
        self._stuck: dict[int, list[int]] = {}  # worker given up on -> tasks that it may still write

    # -- jobs ---------------------------------------------------------------------------------------

    def add_stream(
        self, stream_id: int, key: str, source: str, n: int, next_start: Callable[[int], int], position: int
    ) -> None:
        """A stream begins at `position`; it needs a lane and a cursor before anything is filled."""
        self.streams[stream_id] = Stream(stream_id, key, source, n, next_start, head=position)

    def start_early(self, stream_id: int, into: int, round_rows: int, patience_s: float) -> None:
        """A new stream goes only so far, and is to join another one when that comes by.

        Args:
            stream_id: The new one.
            into: The other one.
            round_rows: ``batch_size * world_size`` of its job.
            patience_s: The longest time that the job may wait there.
        """
        stream = self.streams[stream_id]
        stream.cap = stream.head + allowance(stream.n, round_rows)
        self._early[stream_id] = Early(stream_id, into, stream.head + LEAST_ROUNDS * round_rows, patience_s)

    @property
    def waits_for(self) -> dict[int, int]:
        """Early stream -> the one that it is to join."""
        return {early.stream: early.into for early in self._early.values()}

    def share_wait(self, stream_id: int, patience_s: float) -> None:
        """Another job is to read a stream, which may be an early one: it waits for no longer than each of them may."""
        if (early := self._early.get(stream_id)) is not None:
            early.patience_s = min(early.patience_s, patience_s)

    def add_lane(self, stream_id: int, lane: Lane) -> None:
        """`lane` is filled from its start on, which no worker was given yet."""
        self.streams[stream_id].lanes[lane.id] = lane

    def add_cursor(self, stream_id: int, cursor: Cursor) -> None:
        """A place is kept for a rank. Nothing is filled for it before `cursor_present`."""
        self.streams[stream_id].cursors[cursor.id] = cursor
        self.streams[stream_id].changed()
        self._stream_of[cursor.id] = stream_id

    def move_cursor(self, cursor_id: int, line: BatchLine) -> None:
        """A rank whose place was kept goes on at `line`, at or after the kept place."""
        stream = self.streams[self._stream_of[cursor_id]]
        cursor = stream.cursors[cursor_id]
        cursor.line = line
        cursor.released = cursor.announced = line.peek().start
        cursor.find_next()
        stream.changed()

    def cursor_present(self, cursor_id: int) -> list[Action]:
        """A rank whose place was kept has attached."""
        stream = self.streams[self._stream_of[cursor_id]]
        stream.cursors[cursor_id].present = True
        stream.changed()
        return self._announce(stream) + self._dispatch()

    def release(self, cursor_id: int, upto: int) -> list[Action]:
        """A rank needs no row below `upto`. Older news than the last is ignored.

        Raises:
            ReleaseError: It was never told of rows below `upto`.
        """
        stream = self.streams[self._stream_of[cursor_id]]
        cursor = self.cursor(cursor_id)
        most = cursor.line.peek().start
        if upto > most:
            raise ReleaseError(f"released up to {upto}, but only rows below {most} were announced")
        if upto <= cursor.released:
            return []
        before = cursor.need
        cursor.released = upto
        if not stream.advanced(cursor, before):
            return []
        stream.forget_released()
        return self._dispatch()

    def repeat(self, cursor_id: int) -> Announce:
        """What a rank was told last, for one that asks again."""
        cursor = self.cursor(cursor_id)
        bad = self.stream_of(cursor_id).bad_between(cursor.lane, cursor.released, cursor.announced)
        return Announce(cursor_id, cursor.announced, bad)

    def remove_cursor(self, cursor_id: int) -> list[Action]:
        """A rank is gone, in whatever way. The last one takes its lane and its stream along."""
        stream_id = self._stream_of.pop(cursor_id, None)
        if stream_id is None:
            return []
        stream = self.streams[stream_id]
        gone = stream.cursors.pop(cursor_id)
        stream.changed()
        actions: list[Action] = []
        if not any(c.lane == gone.lane for c in stream.cursors.values()):
            del stream.lanes[gone.lane]
            actions.append(DropLane(gone.lane))
        if not stream.lanes:
            del self.streams[stream_id]
            actions.append(DropStream(stream_id))
            self._made = {key: bad for key, bad in self._made.items() if key[0] != stream_id}
            self._hedged = {key for key in self._hedged if key[0] != stream_id}
        return actions + self._dispatch()

    def stream_of(self, cursor_id: int) -> Stream:
        """The stream that a rank reads.

        Raises:
            KeyError: No such rank.
        """
        return self.streams[self._stream_of[cursor_id]]

    def cursor(self, cursor_id: int) -> Cursor:
        """A rank's cursor.

        Raises:
            KeyError: No such rank.
        """
        return self.stream_of(cursor_id).cursors[cursor_id]

    # -- jobs that part and meet --------------------------------------------------------------------

    def part(
        self,
        stream_id: int,
        groups: Collection[int],
        own: tuple[int, dict[int, Lane]],
        shared: dict[int, Lane],
        key: str | None = None,
    ) -> list[Action]:
        """Separates jobs from those that wait for them; see `prepserver.schedule.lag` and `prepserver.schedule.pace`.

        Args:
            stream_id: Where they are.
            groups: The jobs, with all their ranks.
            own: Their new stream and, for each lane that they read, the new lane there.
            shared: For each of these lanes that others read, too, the new one for those that stay.
            key: Of the new stream, if it is not to join others of the old key again.

        The rows of its absent ranks are made again: these will not have the old ring. No absent rank that stays may
        be in want of rows of the old one; see `prepserver.schedule.lag.left_out`.
        """
        stream = self.streams[stream_id]
        # What is in work above, in all lanes, is made again for the lanes that leave.
        start = stream.watermark
        moved: list[Action] = []
        leaving = [c for c in stream.cursors.values() if c.group in groups]
        begin = min([start, *(c.need for c in leaving if not c.present)])
        old = {c.lane for c in leaving}
        own_id, own_lanes = own
        stream.rename_bad({lane: [new[lane].id for new in (shared, own_lanes) if lane in new] for lane in stream.lanes})
        made = self.streams[own_id] = self._alike(own_id, stream, own_lanes.values(), begin, key)
        for cursor in leaving:
            del stream.cursors[cursor.id]
            made.cursors[cursor.id] = cursor
            self._stream_of[cursor.id] = own_id
            if cursor.present:
                moved.append(self._move(cursor, stream.lanes[cursor.lane], own_lanes[cursor.lane], start))
            else:
                cursor.lane = own_lanes[cursor.lane].id
        for lane_id in sorted(old):
            if lane_id in shared:
                lane = shared[lane_id]
                stream.lanes[lane.id] = lane
                staying = [c for c in stream.cursors.values() if c.lane == lane_id]
                moved += [self._move(c, stream.lanes[lane_id], lane, start) for c in staying]
            del stream.lanes[lane_id]
            moved.append(DropLane(lane_id))
        stream.changed()
        if not stream.lanes:
            del self.streams[stream_id]
            moved.append(DropStream(stream_id))
        return moved + self._dispatch()

    @staticmethod
    def _alike(stream_id: int, other: Stream, lanes: Iterable[Lane], start: int, key: str | None) -> Stream:
        """A stream of the same rows as another one, in `lanes` from `start` on."""
        made = Stream(stream_id, key or other.key, other.source, other.n, other.next_start, head=start)
        made.lanes = {lane.id: replace(lane, start=start) for lane in lanes}
        made.bad = {position: list(rows) for position, rows in other.bad.items()}
        return made

    def meet(self, meeting: Meeting) -> list[Action]:
        """The jobs of one stream go on in another."""
        return self._join(meeting) + self._dispatch()

    def _join(self, meeting: Meeting) -> list[Action]:
        stream = self.streams.pop(meeting.stream)
        into = self.streams[meeting.into]
        self._early.pop(stream.id, None)
        for early in self._early.values():
            if early.into == stream.id:
                early.into = into.id
        actions: list[Action] = [Joined(stream.id, into.id, meeting.lanes)]
        along = [stream.lanes[old] for old, new in meeting.lanes.items() if old == new]
        stream.rename_bad({old: [new] for old, new in meeting.lanes.items() if old != new})
        if along:
            into.name_lanes()
            stream.name_lanes(meeting.lanes)
        ids = {lane.id for lane in along}
        for position, rows in stream.bad.items():
            if position not in into.bad:
                into.bad[position] = list(rows)
            else:
                into.bad[position] += [row for row in rows if ids & set(row.lanes)]
        for lane in along:
            oldest = lane.start if lane.oldest is None else lane.oldest
            into.lanes[lane.id] = replace(lane, start=stream.head, oldest=oldest)
        for cursor in stream.cursors.values():
            into.cursors[cursor.id] = cursor
            self._stream_of[cursor.id] = into.id
            if cursor.lane not in ids:
                old = stream.lanes[cursor.lane]
                actions.append(self._move(cursor, old, into.lanes[meeting.lanes[old.id]], stream.head))
        into.rows_filled += stream.rows_filled
        into.rows_delivered += stream.rows_delivered
        into.changed()
        actions += [DropLane(lane) for lane in stream.lanes if lane not in ids]
        actions.append(DropStream(stream.id))
        return actions + self._announce(into)

    def lose_patience(self, now_s: float) -> list[Action]:
        """Ends waits for other streams that take too long. Call it several times a second."""
        actions: list[Action] = []
        for early in list(self._early.values()):
            stream = self.streams.get(early.stream)
            if stream is not None and early.lost_patience(stream, self.streams.get(early.into), now_s):
                actions.append(self._go_alone(early, "the stream that it waited for has not come by in time"))
        return [*actions, *self._join_early(), *self._dispatch()] if actions else []  # the gates that stood for them go

    def _go_alone(self, early: Early, why: str) -> Action:
        del self._early[early.stream]
        self.streams[early.stream].cap = None
        return GoesAlone(early.stream, why)

    def _join_early(self) -> list[Action]:
        """Joins early streams with those that have come by, and ends waits that lead nowhere."""
        actions: list[Action] = []
        for stream in self.streams.values():
            stream.gate = None
        for early in list(self._early.values()):
            waiting = self.streams.get(early.stream)
            if waiting is None:
                del self._early[early.stream]
                continue
            into = self.streams.get(early.into)
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

    def _move(self, cursor: Cursor, old: Lane, lane: Lane, start: int) -> Move:
        # What it brought to `old` from elsewhere, it reads where it is: that may go on beyond the stream's head.
        start = max(start, cursor.entered, old.start)
        cursor.lane = lane.id
        cursor.entered = start
        cursor.moves += cursor.present
        return Move(cursor.id, lane.id, start)

    def hedge(self, now_s: float) -> list[Action]:
        """Makes chunks a second time that take far too long, while workers idle and jobs wait. Call it now and then."""
        late = []
        for slot in self.workers.values():
            if not slot.tasks:
                continue
            oldest = self._tasks[slot.tasks[0]]
            if oldest.since_s is None:
                oldest.since_s = now_s
                continue
            if now_s - oldest.since_s > max(HEDGE_S, 2e-9 * oldest.foreseen_ns):
                # what is queued behind it waits just as long
                late += [t for t in map(self._tasks.__getitem__, slot.tasks) if not t.hedged and self._is_awaited(t)]
        if not late or not self.workers_idle:
            return []
        for task in late:
            task.hedged = True
            self._hedged.add((task.stream, task.chunk.position))
            self.streams[task.stream].lost(task.chunk)
        return self._dispatch()

    def _is_awaited(self, task: Task) -> bool:
        """Whether a job has nothing ready on a task's stream: while there is, a late chunk harms nobody."""
        return task.stream in self.streams and not self.streams[task.stream].ready_rows()

    def overdue(self, now_s: float, limit_s: float) -> list[int]:
        """Workers whose oldest task has been with them for longer than `limit_s`."""
        return [
            slot.id
            for slot in self.workers.values()
            if slot.tasks and (since_s := self._tasks[slot.tasks[0]].since_s) is not None and now_s - since_s > limit_s
        ]

    @property
    def workers_idle(self) -> bool:
        """Whether a worker has nothing to do."""
        return bool(self._free[0])

    # -- workers ------------------------------------------------------------------------------------

    def worker_up(self, worker: int) -> list[Action]:
        """A worker is ready for tasks."""
        self.workers[worker] = self._free[0][worker] = WorkerSlot(worker)
        return self._dispatch()

    def task_done(self, worker: int, task_id: int, bad: Iterable[BadRow], took: Took = Took()) -> list[Action]:  # noqa: B008 - frozen
        """A worker filled the rows of a task. `give_out` comes next: a job that waits is told first."""
        task = self._end(worker, task_id)
        stream = None if task is None else self.streams.get(task.stream)
        if task is None or stream is None:
            return []
        stream.took(task.chunk, took)
        # A worker that was stopped for a minute is no debt of a minute.
        stream.served_ns += min(took.wall_ns, 2 * task.foreseen_ns + SLOW_NS) - task.foreseen_ns
        self._acquit(stream, task.chunk)
        if self._hedged and (kills := self._twins(task)):
            # The other one that runs this chunk may still write values that are not final into rows that are:
            # nobody is told before it has ended.
            self._made[stream.id, task.chunk.position] = list(bad)
            return kills
        if self._hedged:
            self._made.pop((stream.id, task.chunk.position), None)
            self._hedged.discard((stream.id, task.chunk.position))
        stream.filled(task.chunk, bad)
        return self._announce(stream)

    def give_out(self) -> list[Action]:
        """Hands chunks to the workers that have room for them, after `task_done`."""
        return self._dispatch()

    def _twins(self, task: Task) -> list[Action]:
        """Ends the workers that run the same chunk."""
        key = (task.stream, task.chunk.position)
        return [
            KillWorker(t.worker)
            for t in self._tasks.values()
            if (t.stream, t.chunk.position) == key and t.worker in self.workers
        ]

    def _settle(self, task: Task) -> list[Action]:
        """A task has ended without a result: its rows are final if its twin has made them, else lost."""
        stream = self.streams.get(task.stream)
        if stream is None:
            return []
        key = (stream.id, task.chunk.position)
        if any((t.stream, t.chunk.position) == key and t.worker in self.workers for t in self._tasks.values()):
            return []  # its twin is at it still
        if key not in self._made:
            stream.lost(task.chunk)
            return []
        self._hedged.discard(key)
        stream.filled(task.chunk, self._made.pop(key))
        return self._announce(stream)

    def task(self, task_id: int) -> Task | None:
        """A task that a worker holds."""
        return self._tasks.get(task_id)

    def task_failed(self, worker: int, task_id: int) -> list[Action]:
        """A worker could not run a task: it is given out again."""
        task = self._end(worker, task_id)
        if task is not None and task.stream in self.streams:
            self.streams[task.stream].lost(task.chunk)
        return self._dispatch()

    def worker_lost(self, worker: int, suspect: Suspect | None = None, strikes: int = CRASH_STRIKES) -> list[Action]:
        """A worker died. Its rows are made again, by others.

        Args:
            worker: Who.
            suspect: What it was at (of its oldest task), if known.
            strikes: How much speaks against that: `CRASH_STRIKES` or `KILL_STRIKES`.
        """
        for task_id in self._stuck.pop(worker, []):
            self._tasks_end(task_id)
        slot = self._without(worker)
        if slot is None:
            return self._dispatch()
        actions = self._blame(slot, suspect, strikes)
        for task_id in slot.tasks:
            task = self._tasks_end(task_id)
            if task is not None:
                actions += self._settle(task)
        return actions + self._dispatch()

    def worker_stuck(self, worker: int, suspect: Suspect | None = None, strikes: int = CRASH_STRIKES) -> list[Action]:
        """A worker neither answers nor dies (a read that hangs in the kernel).

        Its rows are made again, but it may yet write into them: they are not reused until it is gone.
        """
        slot = self._without(worker)
        if slot is None:
            return []
        actions = self._blame(slot, suspect, strikes)
        self._stuck[worker] = slot.tasks
        for task_id in slot.tasks:
            # Killed, it executes nothing of its own any more; only its end is still to come.
            actions += self._settle(self._tasks[task_id])
        return actions + self._dispatch()

    def quarantine(self, source: str, indices: Iterable[int], pipeline: str = "") -> None:
        """Samples known bad from before, for one pipeline or for all."""
        self.quarantined[source, pipeline].update(indices)

    # -- inside -------------------------------------------------------------------------------------

    def _blame(self, slot: WorkerSlot, suspect: Suspect | None, strikes: int) -> list[Action]:
        task = self._tasks.get(slot.tasks[0]) if slot.tasks else None
        stream = self.streams.get(task.stream) if task is not None else None
        if suspect is None or task is None or stream is None:
            return []
        if suspect.lane is not None and suspect.lane not in stream.lanes:
            return []  # nobody wants that row any more
        pipeline = "" if suspect.lane is None else stream.lanes[suspect.lane].key[0]
        source, index = stream.source, suspect.index
        if index in self.quarantined[source, ""] | self.quarantined[source, pipeline]:
            return []  # it is not tried any more: whatever killed the worker, it was not that sample
        self._strikes[source, pipeline, index] += strikes
        self._suspects.setdefault((stream.id, task.chunk.position), set()).add((pipeline, index))
        if self._strikes[source, pipeline, index] < STRIKES_OUT:
            return []
        del self._strikes[source, pipeline, index]
        self.quarantined[source, pipeline].add(index)
        return [QuarantineSample(source, index, pipeline)]

    def _acquit(self, stream: Stream, chunk: Chunk) -> None:
        if self._suspects:
            for pipeline, index in self._suspects.pop((stream.id, chunk.position), ()):
                self._strikes.pop((stream.source, pipeline, index), None)

    def _end(self, worker: int, task_id: int) -> Task | None:
        slot = self.workers.get(worker)
        if slot is None or task_id not in slot.tasks:
            return None  # of a worker that was given up on: its rows were made by another
        slot.tasks.remove(task_id)
        slot.slow_tasks -= self._tasks[task_id].foreseen_ns > SLOW_NS
        self._refile(slot)
        return self._tasks_end(task_id)

    def _without(self, worker: int) -> WorkerSlot | None:
        for free in self._free:
            free.pop(worker, None)
        return self.workers.pop(worker, None)

    def _refile(self, slot: WorkerSlot) -> None:
        """A worker holds other tasks now: where it stands among those that take more."""
        for free in self._free:
            free.pop(slot.id, None)
        if len(slot.tasks) < TASKS_PER_WORKER and not slot.slow_tasks:
            self._free[len(slot.tasks)][slot.id] = slot

    def _tasks_end(self, task_id: int) -> Task | None:
        task = self._tasks.pop(task_id, None)
        if task is not None and task.stream in self.streams:
            self.streams[task.stream].ended(task_id)
        return task

    def _announce(self, stream: Stream) -> list[Action]:
        watermark = stream.watermark
        return [
            Announce(cursor.id, *told)
            for cursor in stream.cursors.values()
            if watermark >= cursor.next_stop and (told := stream.announcements(cursor, watermark)) is not None
        ]

    def _dispatch(self) -> list[Action]:
        """Hands chunks to free workers: the emptiest worker first, the stream with least ready first."""
        actions: list[Action] = []
        for stream in self.streams.values():
            # The jobs that needed a lost chunk may be gone; those beyond it must hear of their rows now, for
            # with a full window nothing else may ever happen here.
            if stream.has_lost and stream.drop_unneeded():
                actions += self._announce(stream)
        if not self.streams:
            return actions
        if self._early:
            actions += self._join_early()
        while (slot := self._emptiest()) is not None and (found := self._next_chunk()) is not None:
            stream, chunk = found
            task_id = next(self._task_ids)
            foreseen_ns = (stream.row_ns(chunk.lanes) or 0) * chunk.count
            stream.served_ns = max(stream.served_ns, self._turn_ns) + foreseen_ns
            self._tasks[task_id] = Task(stream.id, chunk, slot.id, foreseen_ns=foreseen_ns)
            stream.started(task_id, chunk)
            slot.tasks.append(task_id)
            slot.slow_tasks += foreseen_ns > SLOW_NS
            self._refile(slot)
            actions.append(Submit(slot.id, task_id, stream.id, chunk.lanes, chunk.position, chunk.count))
            if self._early:
                actions += self._join_early()
        return actions

    def _emptiest(self) -> WorkerSlot | None:
        """A worker that takes a task, one with nothing to do if there is one."""
        for free in self._free:
            if free:
                return next(iter(free.values()))
        return None

    def _next_chunk(self) -> tuple[Stream, Chunk] | None:
        if len(self.streams) == 1:
            order = list(self.streams.values())
        else:
            # By what is ready and not by what is given out: a stream that lacks the last rows of a batch (one chunk
            # lost, or a large batch in a small ring) would wait for ever behind those that are consumed at once.
            # Where jobs wait on several streams, these take turns. But first of all by the time that it has cost: jobs
            # whose rows take a second each wait at all times, and would have all workers.
            order = sorted(
                (s for s in self.streams.values() if s.lanes),
                key=lambda s: (self._turn_of(s), s.ready_rows(), s.last_served),
            )
        for stream in order:
            most = self._chunk_rows_of(stream) if stream.lanes else 0
            chunk = stream.next_chunk(most, min(most, self.chunk_rows)) if most else None
            if chunk is not None:
                self._turn_ns = self._turn_of(stream) * TURN_NS
                stream.last_served = next(self._served)
                return stream, chunk
        return None

    def _turn_of(self, stream: Stream) -> int:
        """Who did not want anything for a while has no claim to more than its part of now."""
        return max(stream.served_ns, self._turn_ns) // TURN_NS

    def _chunk_rows_of(self, stream: Stream) -> int:
        """Rows in the next chunk of a stream: few until its jobs have got going, then more where they do not crowd.

        A first batch is sooner there when all workers have a share of it; later on only the rate counts. The ring
        must hold twice what all workers have in hand, or they would wait for each other. No more in any case than a
        worker makes in `SLOW_NS`, as the last chunk shows; and a single one, before there was a chunk of these lanes.
        """
        row_ns = stream.row_ns(stream.next_lanes)
        if row_ns is None:
            return 1  # which may take a minute: nobody knows yet
        most = self.chunk_rows
        if stream.rows_filled >= SETTLED_CHUNKS * self.chunk_rows:
            for times in GROWN:
                grown = min(times * self.chunk_rows, MAX_CHUNK_ROWS)
                if 2 * len(self.workers) * TASKS_PER_WORKER * grown <= stream.ring_rows:
                    most = grown
                    break
        return max(1, min(most, SLOW_NS // max(1, row_ns)))
