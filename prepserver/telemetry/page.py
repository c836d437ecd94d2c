"""One page of counters per worker: the worker writes it, the daemon reads it, nobody waits for anybody.

It answers two questions that no message can: what was a worker doing when it died, and for how long has it
been at the step that it is at. Both must hold for a process that will never send anything again, so they
lie in memory that outlives it.

Stores go through a memoryview of 64-bit words: one store each (60 ns), and a reader never sees half of one.
`struct.pack_into` would not do: it zeroes the target before it writes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from prepserver.memory.mapping import Mapping
from prepserver.memory.segment import check_segment, create_segment
from prepserver.protocol.layout import PAGE_BYTES

NO_TASK = -1
NO_LANE = -1

_TASK, _POSITION, _INDEX, _STARTED_NS, _TASKS, _ROWS, _BAD_ROWS, _READ_NS, _MAKE_NS, _LANE = range(10)


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One reading of a page.

    Attributes:
        task: The task in hand, or `NO_TASK`.
        position: Position of the sample in hand; meaningless while `started_ns` is 0.
        index: Index of the sample in hand in its source (a replacement's own, while one is tried).
        started_ns: When the step in hand was begun (`time.monotonic_ns`), 0 between samples.
        tasks: Tasks done since the worker started.
        rows: Positions done since then.
        bad_rows: Of these, the ones that hold a replacement or zeros.
        read_ns: Time spent reading encoded bytes.
        make_ns: Time spent in decode and augmentation.
        lane: Whose row of the sample in hand is being rendered; `NO_LANE` while it is read and decoded, for all.
    """

    task: int
    position: int
    index: int
    started_ns: int
    tasks: int
    rows: int
    bad_rows: int
    read_ns: int
    make_ns: int
    lane: int

    @property
    def busy(self) -> bool:
        """Whether a sample is in hand."""
        return self.started_ns != 0


class StatsPage:
    """A mapping of one page of counters.

    Args:
        fd: From `create_page`; may be closed afterwards.
        writable: True in the worker, the one writer; the daemon's mapping cannot write.

    Raises:
        SegmentError: The descriptor is not such a page.
    """

    def __init__(self, fd: int, *, writable: bool) -> None:
        check_segment(fd, PAGE_BYTES)
        buffer: Any = Mapping(fd, 0, PAGE_BYTES, writable=writable).buffer  # a view keeps the mapping
        words = np.frombuffer(buffer, dtype=np.uint8).data.cast("q")
        self._words = words if writable else words.toreadonly()  # a TypeError and not a SIGSEGV

    def begin_task(self, task: int) -> None:
        """The worker takes up `task`."""
        self._words[_TASK] = task

    def begin_sample(self, position: int, index: int) -> None:
        """The worker begins sample `index` for the row of `position`, by reading it: the deadline runs from now."""
        words = self._words
        # Zero first: a reader in between sees "nothing in hand", not the old sample with the new one's time.
        words[_STARTED_NS] = 0
        words[_POSITION] = position
        words[_INDEX] = index
        words[_LANE] = NO_LANE
        words[_STARTED_NS] = time.monotonic_ns()

    def begin_step(self, lane: int) -> None:
        """The worker goes on with the sample in hand, for `lane` or for all: the deadline runs from now."""
        words = self._words
        words[_STARTED_NS] = 0
        words[_LANE] = lane
        words[_STARTED_NS] = time.monotonic_ns()

    def end_task(self, rows: int, bad_rows: int, read_ns: int, make_ns: int) -> None:
        """The task in hand is done; its numbers are added up."""
        words = self._words
        words[_STARTED_NS] = 0
        words[_TASK] = NO_TASK
        words[_TASKS] += 1
        words[_ROWS] += rows
        words[_BAD_ROWS] += bad_rows
        words[_READ_NS] += read_ns
        words[_MAKE_NS] += make_ns

    def fail_task(self) -> None:
        """The task in hand could not be done; nothing is counted."""
        self._words[_STARTED_NS] = 0
        self._words[_TASK] = NO_TASK

    def read(self) -> WorkerStats:
        """What the page says now.

        Of a dead worker it is exact. Of a running one, task and sample belong together unless the worker
        went through two samples in the microsecond between two looks; a deadline looks twice anyway.
        """
        for _ in range(3):
            stats = WorkerStats(*self._words[: _LANE + 1])
            if self._words[_STARTED_NS] == stats.started_ns:
                break
        return stats


def create_page(name: str) -> int:
    """A new page in which no task is in hand.

    Args:
        name: Shown in /proc/<pid>/maps.

    Returns:
        Its descriptor; the caller owns it.
    """
    fd = create_segment(name, PAGE_BYTES)
    StatsPage(fd, writable=True).fail_task()
    return fd
