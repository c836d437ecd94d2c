"""One page of counters per worker: the worker writes it and the daemon reads it, without waiting for each other.

It tells what a worker was doing when it died, and how long a running one has been at its current step, though neither
may ever send a message again. So the counters are in memory that outlives the worker.

Writes go through a memoryview of 64-bit words: each is one store (60 ns), and a reader never sees half of one.
`struct.pack_into` would not do, because it zeroes the target before it writes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from prepserver.memory.mapping import MemoryMap
from prepserver.memory.segment import check_segment, create_segment
from prepserver.protocol.layout import PAGE_BYTES

NO_TASK = -1
NO_LANE = -1
SEVERAL = -1  # the index while several samples are made at once: no single one is in hand

(
    _TASK, _POSITION, _INDEX, _STARTED_NS, _TASKS, _ROWS, _BAD_ROWS, _READ_NS, _MAKE_NS, _LANE, _TASK_NS, _RECEIVED,
    _HELD_NS,
) = range(13)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One reading of a page."""

    task: int  # the current task, or `NO_TASK`
    position: int  # position of the current sample; meaningless while `started_ns` is 0
    index: int  # index of the current sample in its source (of the replacement, while one is tried)
    started_ns: int  # start of the current step (`time.monotonic_ns`), 0 between samples
    tasks: int  # tasks done since the worker started
    rows: int  # positions done since the worker started
    bad_rows: int  # rows among them that hold a replacement or zeros
    read_ns: int  # time spent reading encoded bytes
    make_ns: int  # time spent in decode and augmentation
    lane: int  # the lane for which the sample is being rendered; `NO_LANE` while it is read and decoded for all
    task_ns: int  # start of the current task (`time.monotonic_ns`); meaningless without one
    received_bytes: int = 0  # bytes of rows that came from another machine
    held_ns: int = 0  # time in which a remote worker made no rows, because earlier rows were still being sent

    @property
    def busy(self) -> bool:
        """Whether the worker is processing a sample."""
        return self.started_ns != 0


class StatsPage:
    """A mapping of one page of counters, from `create_page`; its descriptor may be closed afterwards.

    It is writable in the worker, the only writer; the daemon's mapping cannot write.

    Raises:
        SegmentError: The descriptor is not such a page.
    """

    def __init__(self, fd: int, *, writable: bool) -> None:
        check_segment(fd, PAGE_BYTES)
        buffer: Any = MemoryMap(fd, 0, PAGE_BYTES, writable=writable).buffer  # a view keeps the mapping
        words = np.frombuffer(buffer, dtype=np.uint8).data.cast("q")
        self._words = words if writable else words.toreadonly()  # a write is then a TypeError, not a SIGSEGV

    def begin_task(self, task: int) -> int:
        """The worker begins `task`; returns the time (`time.monotonic_ns`)."""
        began_ns = self._words[_TASK_NS] = time.monotonic_ns()
        self._words[_TASK] = task
        return began_ns

    def begin_sample(self, position: int, index: int) -> None:
        """The worker begins to read sample `index` for the row of `position`; the deadline runs from now."""
        words = self._words
        # Zero first: a reader in between sees no sample, and not the old sample with the new one's time.
        words[_STARTED_NS] = 0
        words[_POSITION] = position
        words[_INDEX] = index
        words[_LANE] = NO_LANE
        words[_STARTED_NS] = time.monotonic_ns()

    def begin_step(self, lane: int) -> None:
        """The worker continues with the current sample for `lane`, or for all; the deadline runs from now."""
        words = self._words
        words[_STARTED_NS] = 0
        words[_LANE] = lane
        words[_STARTED_NS] = time.monotonic_ns()

    def end_task(
        self, rows: int, bad_rows: int, read_ns: int, make_ns: int, received_bytes: int = 0, held_ns: int = 0
    ) -> None:
        """The current task is done; adds its numbers."""
        words = self._words
        words[_STARTED_NS] = 0
        words[_TASK] = NO_TASK
        words[_TASKS] += 1
        words[_ROWS] += rows
        words[_BAD_ROWS] += bad_rows
        words[_READ_NS] += read_ns
        words[_MAKE_NS] += make_ns
        words[_RECEIVED] += received_bytes
        words[_HELD_NS] += held_ns

    def fail_task(self) -> None:
        """The current task failed; nothing is counted."""
        self._words[_STARTED_NS] = 0
        self._words[_TASK] = NO_TASK

    def read(self) -> WorkerStats:
        """A reading of the page: exact for a dead worker.

        For a running worker, task and sample match unless it processed two samples within a microsecond. That is good
        enough for deadlines, which are checked repeatedly.
        """
        for _ in range(3):
            stats = WorkerStats(*self._words[: _HELD_NS + 1])
            if self._words[_STARTED_NS] == stats.started_ns:
                break
        return stats


def create_page(name: str) -> int:
    """Makes a page without a task, `name` in /proc/<pid>/maps; returns its descriptor for the caller to close."""
    fd = create_segment(name, PAGE_BYTES)
    StatsPage(fd, writable=True).fail_task()
    return fd
