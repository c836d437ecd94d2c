from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepserver.memory.errors import SegmentError
from prepserver.memory.segment import create_segment
from prepserver.telemetry.page import NO_LANE, NO_TASK, StatsPage, WorkerStats, create_page


@pytest.fixture
def fd() -> Iterator[int]:
    fd = create_page("test-page")
    yield fd
    os.close(fd)


def test_a_new_page_says_that_nothing_was_done(fd: int) -> None:
    assert StatsPage(fd, writable=False).read() == WorkerStats(NO_TASK, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_the_reader_sees_the_sample_in_hand_and_since_when(fd: int) -> None:
    writer, reader = StatsPage(fd, writable=True), StatsPage(fd, writable=False)
    before_ns = time.monotonic_ns()
    writer.begin_task(5)
    writer.begin_sample(2**60, 77)
    stats = reader.read()
    assert before_ns <= stats.task_ns <= stats.started_ns
    assert (stats.task, stats.position, stats.index, stats.busy) == (5, 2**60, 77, True)
    assert before_ns <= stats.started_ns <= time.monotonic_ns()


def test_each_step_of_a_sample_has_its_lane_and_time(fd: int) -> None:
    writer, reader = StatsPage(fd, writable=True), StatsPage(fd, writable=False)
    writer.begin_task(5)
    writer.begin_sample(7, 77)
    seen = [reader.read()]
    for lane in (3, NO_LANE):
        writer.begin_step(lane)
        seen.append(reader.read())
    assert [(stats.index, stats.lane) for stats in seen] == [(77, NO_LANE), (77, 3), (77, NO_LANE)]
    assert seen[0].started_ns < seen[1].started_ns < seen[2].started_ns


def test_tasks_add_up_and_a_failed_one_counts_nothing(fd: int) -> None:
    writer = StatsPage(fd, writable=True)
    for task in range(3):
        writer.begin_task(task)
        writer.begin_sample(task, task)
        writer.end_task(10, 1, 1000, 2000)
    writer.begin_task(3)
    writer.begin_sample(3, 3)
    writer.fail_task()
    stats = StatsPage(fd, writable=False).read()
    assert stats == WorkerStats(NO_TASK, 3, 3, 0, 3, 30, 3, 3000, 6000, NO_LANE, stats.task_ns)


def test_what_a_killed_process_was_doing_can_still_be_read(fd: int) -> None:
    script = (
        "import os\n"
        "from prepserver.telemetry.page import StatsPage\n"
        f"page = StatsPage({fd}, writable=True)\n"
        "page.begin_task(9)\n"
        "page.begin_sample(4, 44)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    ended = subprocess.run([sys.executable, "-c", script], pass_fds=[fd], env=env, check=False)
    assert ended.returncode == -signal.SIGKILL
    stats = StatsPage(fd, writable=False).read()
    assert (stats.task, stats.position, stats.index, stats.busy) == (9, 4, 44, True)


def test_the_readers_mapping_cannot_write_and_goes_with_its_page(fd: int) -> None:
    def mapped() -> list[str]:
        return [line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines() if "test-page" in line]

    page = StatsPage(fd, writable=False)
    assert mapped() == ["r--s"]
    with pytest.raises(TypeError):
        page.begin_task(1)
    del page
    assert mapped() == []


def test_a_descriptor_of_another_size_is_refused() -> None:
    fd = create_segment("test-page", 8192)
    with pytest.raises(SegmentError, match="8192"):
        StatsPage(fd, writable=False)
    os.close(fd)
