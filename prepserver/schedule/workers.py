"""The tasks that each worker holds, and the workers that can take another."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prepserver.schedule.records import Chunk
from prepserver.schedule.stream import Stream

TASKS_PER_WORKER = 2  # one running and one queued, which hides the round trip

SLOW_NS = 500_000_000
"""Most time that a chunk of several rows may take, because other jobs wait for the worker: ten times that of an
ordinary chunk of 64 rows. Nothing is queued behind a task that should take longer."""

BARRED_S = 60.0  # how long a worker on another machine gets no tasks for a stream that it could not read


@dataclass(slots=True)
class WorkerSlot:
    """A worker, its tasks and what it may get."""

    id: int
    tasks: list[int] = field(default_factory=list)  # oldest first
    slow_tasks: int = 0  # how many of them should take longer than `SLOW_NS`
    retires: bool = False  # whether it gets no more tasks
    late: bool = False  # whether its current task takes far too long
    barred: dict[int, tuple[float, str]] = field(default_factory=dict)  # stream it gets no tasks of -> until when, why

    @property
    def takes_more(self) -> bool:
        """Whether it can take another task."""
        return len(self.tasks) < TASKS_PER_WORKER and not self.slow_tasks and not self.retires


@dataclass(slots=True)
class Task:
    """A chunk of a stream in a worker's hands."""

    stream: int
    chunk: Chunk
    worker: int
    since_s: float | None = None  # when it was first seen as the worker's oldest; None before
    decodes: bool = False  # whether the worker has to decode a row group for it
    twice: bool = False  # whether its chunk was given out a second time
    foreseen_ns: int = 0  # expected time


class Workers:
    """All workers and their tasks. In the `streams` it records which tasks may still write their rows."""

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self._streams = streams
        self.slots: dict[int, WorkerSlot] = {}
        self.tasks: dict[int, Task] = {}
        self._free: list[dict[int, WorkerSlot]] = [{} for _ in range(TASKS_PER_WORKER)]  # by tasks held
        self._stuck: dict[int, list[int]] = {}  # stuck worker -> tasks whose rows it may still write

    @property
    def idle(self) -> list[WorkerSlot]:
        """The workers without a task."""
        return list(self._free[0].values())

    def idle_for(self, stream: int) -> bool:
        """Whether a worker without a task may get one of `stream`."""
        return any(stream not in slot.barred for slot in self._free[0].values())

    def free(self) -> Iterator[WorkerSlot]:
        """The workers that can take a task, idle ones first. Valid until a task is given to one of them."""
        return itertools.chain.from_iterable(free.values() for free in self._free)

    def busy_ns(self, worker: int, stream: int) -> int | None:
        """How long a worker's tasks should take; None if it gets no task of `stream`."""
        slot = self.slots.get(worker)
        if slot is None or slot.retires or slot.late or stream in slot.barred:
            return None
        return sum(self.tasks[task].foreseen_ns for task in slot.tasks)

    def bar(self, worker: int, stream: int, why: str, now_s: float) -> bool:
        """Gives a worker no tasks of a stream for `BARRED_S`; returns whether this reason is new for the stream."""
        is_new = all(slot.barred.get(stream, (0.0, ""))[1] != why for slot in self.slots.values())
        self.slots[worker].barred[stream] = now_s + BARRED_S, why
        return is_new

    def unbar(self, now_s: float) -> None:
        """Lets workers try again whose `BARRED_S` are over."""
        for slot in self.slots.values():
            for stream in [stream for stream, (until_s, _) in slot.barred.items() if until_s <= now_s]:
                del slot.barred[stream]

    def up(self, worker: int) -> None:
        """Adds a worker that is ready for tasks."""
        self.slots[worker] = self._free[0][worker] = WorkerSlot(worker)

    def retire(self, worker: int) -> None:
        """Gives a worker no more tasks. A worker that has ended is ignored."""
        if (slot := self.slots.get(worker)) is not None:
            slot.retires = True
            self._refile(slot)

    @property
    def retired(self) -> list[int]:
        """Retiring workers that have finished all their tasks."""
        return [slot.id for slot in self.slots.values() if slot.retires and not slot.tasks]

    def give(self, slot: WorkerSlot, task_id: int, task: Task) -> None:
        """Gives a worker a task."""
        self.tasks[task_id] = task
        self._streams[task.stream].chunks.started(task.chunk.position)
        slot.tasks.append(task_id)
        slot.slow_tasks += task.foreseen_ns > SLOW_NS
        self._refile(slot)

    def end(self, worker: int, task_id: int) -> Task | None:
        """Takes a finished task from its worker; None if the worker does not have it, because it was given up on."""
        slot = self.slots.get(worker)
        if slot is None or task_id not in slot.tasks:
            return None
        slot.tasks.remove(task_id)
        slot.late = False
        slot.slow_tasks -= self.tasks[task_id].foreseen_ns > SLOW_NS
        self._refile(slot)
        return self._forget(task_id)

    def lose(self, worker: int) -> list[Task]:
        """Removes a worker that has ended, so that it cannot write any more.

        Returns the tasks that end with it, oldest first; none if `give_up` has returned them.
        """
        for task_id in self._stuck.pop(worker, ()):
            self._forget(task_id)
        return [self._forget(task_id) for task_id in self._without(worker)]

    def give_up(self, worker: int) -> list[Task]:
        """Gives up on a killed worker that does not end: the kernel may still write rows for it. Returns its tasks."""
        task_ids = self._without(worker)
        self._stuck.setdefault(worker, task_ids)
        return [self.tasks[task_id] for task_id in task_ids]

    def making(self, stream: int, position: int) -> list[int]:
        """The workers that make this chunk, except stuck ones."""
        return [
            t.worker
            for t in self.tasks.values()
            if t.stream == stream and t.chunk.position == position and t.worker in self.slots
        ]

    def oldest(self) -> Iterable[tuple[WorkerSlot, Task]]:
        """Each busy worker with the task that it runs."""
        return [(slot, self.tasks[slot.tasks[0]]) for slot in self.slots.values() if slot.tasks]

    def overdue(self, now_s: float, limit_s: float) -> list[int]:
        """Workers whose current task has run for longer than `limit_s`."""
        return [slot.id for slot, task in self.oldest() if task.since_s is not None and now_s - task.since_s > limit_s]

    def _without(self, worker: int) -> list[int]:
        """Removes a worker; returns the tasks that it held."""
        for free in self._free:
            free.pop(worker, None)
        slot = self.slots.pop(worker, None)
        return [] if slot is None else slot.tasks

    def _refile(self, slot: WorkerSlot) -> None:
        """Files a worker again under the number of tasks that it holds."""
        for free in self._free:
            free.pop(slot.id, None)
        if slot.takes_more:
            self._free[len(slot.tasks)][slot.id] = slot

    def _forget(self, task_id: int) -> Task:
        task = self.tasks.pop(task_id)
        if task.stream in self._streams:
            self._streams[task.stream].chunks.ended(task.chunk.position)
        return task
