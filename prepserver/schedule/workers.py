"""The workers' slots: which worker has which tasks, and which one takes another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prepserver.schedule.records import Chunk
from prepserver.schedule.stream import Stream

TASKS_PER_WORKER = 2
"""One running and one queued: the queued one hides the round trip, more would only blur who has what."""

SLOW_NS = 500_000_000
"""No chunk is to take longer if it can have fewer rows (views of photos of 12 megapixels, a slow disk, a slow
pipeline): others wait for it. Ten times what an ordinary chunk of 64 rows takes. Nothing is queued after one that
takes longer all the same: the job that waits for it may be another user's."""


@dataclass(slots=True)
class WorkerSlot:
    """A worker and the tasks that it holds, oldest first; how many of them are to take longer than `SLOW_NS`."""

    id: int
    tasks: list[int] = field(default_factory=list)
    slow_tasks: int = 0


@dataclass(slots=True)
class Task:
    """A chunk in a worker's hands.

    Attributes:
        stream: Whose chunk it is.
        chunk: Which.
        worker: Who has it.
        since_s: Since when it is the worker's oldest; None before that was seen.
        twice: Whether it was given out a second time.
        foreseen_ns: How long it should take.
    """

    stream: int
    chunk: Chunk
    worker: int
    since_s: float | None = None
    twice: bool = False
    foreseen_ns: int = 0


class Workers:
    """See the module.

    Args:
        streams: All of them: they know which tasks may still write their rows.
    """

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self._streams = streams
        self.slots: dict[int, WorkerSlot] = {}
        self.tasks: dict[int, Task] = {}
        self._free: list[dict[int, WorkerSlot]] = [{} for _ in range(TASKS_PER_WORKER)]  # by tasks held
        self._stuck: dict[int, list[int]] = {}  # worker given up on -> tasks that it may still write

    @property
    def are_idle(self) -> bool:
        """Whether a worker has nothing to do."""
        return bool(self._free[0])

    def emptiest(self) -> WorkerSlot | None:
        """A worker that takes a task, one with nothing to do if there is one."""
        for free in self._free:
            if free:
                return next(iter(free.values()))
        return None

    def up(self, worker: int) -> None:
        """A worker takes tasks."""
        self.slots[worker] = self._free[0][worker] = WorkerSlot(worker)

    def give(self, slot: WorkerSlot, task_id: int, task: Task) -> None:
        """A worker is given a task."""
        self.tasks[task_id] = task
        self._streams[task.stream].chunks.started(task_id, task.chunk.position)
        slot.tasks.append(task_id)
        slot.slow_tasks += task.foreseen_ns > SLOW_NS
        self._refile(slot)

    def end(self, worker: int, task_id: int) -> Task | None:
        """A worker is done with a task; None for one that was given up on: its rows were made by another."""
        slot = self.slots.get(worker)
        if slot is None or task_id not in slot.tasks:
            return None
        slot.tasks.remove(task_id)
        slot.slow_tasks -= self.tasks[task_id].foreseen_ns > SLOW_NS
        self._refile(slot)
        return self._forget(task_id)

    def lose(self, worker: int) -> list[Task] | None:
        """A worker has ended: it writes nothing any more.

        Returns:
            The tasks that end with it, oldest first; None if it was stuck, and these were given up on before.
        """
        for task_id in self._stuck.pop(worker, ()):
            self._forget(task_id)
        slot = self._without(worker)
        return None if slot is None else [task for t in slot.tasks if (task := self._forget(t)) is not None]

    def give_up(self, worker: int) -> list[Task] | None:
        """A worker was killed and does not end: it executes nothing of its own any more, but may yet write its rows."""
        slot = self._without(worker)
        if slot is None:
            return None
        self._stuck[worker] = slot.tasks
        return [self.tasks[task_id] for task_id in slot.tasks]

    def at(self, stream: int, position: int) -> list[int]:
        """The workers that make this chunk, without those that were given up on."""
        return [
            t.worker
            for t in self.tasks.values()
            if t.stream == stream and t.chunk.position == position and t.worker in self.slots
        ]

    def oldest(self) -> Iterable[tuple[WorkerSlot, Task]]:
        """Each worker that has a task, with the one that it runs."""
        return [(slot, self.tasks[slot.tasks[0]]) for slot in self.slots.values() if slot.tasks]

    def overdue(self, now_s: float, limit_s: float) -> list[int]:
        """Workers that run a task for longer than `limit_s`."""
        return [slot.id for slot, task in self.oldest() if task.since_s is not None and now_s - task.since_s > limit_s]

    def _without(self, worker: int) -> WorkerSlot | None:
        for free in self._free:
            free.pop(worker, None)
        return self.slots.pop(worker, None)

    def _refile(self, slot: WorkerSlot) -> None:
        """A worker holds other tasks now: where it stands among those that take more."""
        for free in self._free:
            free.pop(slot.id, None)
        if len(slot.tasks) < TASKS_PER_WORKER and not slot.slow_tasks:
            self._free[len(slot.tasks)][slot.id] = slot

    def _forget(self, task_id: int) -> Task | None:
        task = self.tasks.pop(task_id, None)
        if task is not None and task.stream in self._streams:
            self._streams[task.stream].chunks.ended(task_id)
        return task

    def validate(self) -> list[str]:
        """What contradicts what, in words; nothing if all is well."""
        held = [t for slot in self.slots.values() for t in slot.tasks] + [t for ts in self._stuck.values() for t in ts]
        wrong = [] if sorted(held) == sorted(self.tasks) else [f"tasks held {held}, known {sorted(self.tasks)}"]
        for stream in self._streams.values():
            known = {t for t, task in self.tasks.items() if task.stream == stream.id}
            if known != stream.chunks.running:
                wrong.append(f"stream {stream.id}: tasks {known}, running {set(stream.chunks.running)}")
        free = {w for each in self._free for w in each}
        takes = {s.id for s in self.slots.values() if len(s.tasks) < TASKS_PER_WORKER and not s.slow_tasks}
        return wrong if free == takes else [*wrong, f"free workers {free}, those that take a task {takes}"]
