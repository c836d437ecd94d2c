"""Real zygote and workers: their work, and that nothing is left of them, whichever process dies."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prepserver.pipeline.sources import SyntheticImages
from prepserver.protocol.work import (
    AddLane,
    AddStream,
    DropLane,
    Fill,
    Filled,
    Prepare,
)
from prepserver.source import build_index
from prepserver.worker.channel import ChannelClosed
from prepserver.worker.child import Child
from prepserver.worker.fill import fill
from prepserver.worker.launch import ChildExited, ChildSpawned, Event, Zygote, ZygoteGone
from tests.support import leaks
from tests.support.tiny_images import OwnLane, index_of, nothing, open_stream, photo_tree, tiny_pipeline
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.fault

ROWS = 24


class Pool:
    """A zygote with the events that it has had."""

    def __init__(self) -> None:
        self.zygote = Zygote(Prepare(nice=0))
        self.start()

    def start(self) -> None:
        self.zygote.start()
        self.zygote.wait_ready(PATIENCE_S)
        self.events: list[Event] = []

    @property
    def pid(self) -> int:
        assert self.zygote.pid is not None
        return self.zygote.pid

    def until(self, done: Callable[[], Any], *lines: Any) -> Any:
        """What `done` returns once it is true; takes events meanwhile."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (result := done()):
            assert time.monotonic() < deadline_s, self.events
            poll = select.poll()
            for line in (self.zygote, *lines):
                fd = line if isinstance(line, int) else line.fileno()
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
            poll.poll(100)
            self.events += self.zygote.receive()
        return result

    def event(self, kind: type, child: Child | None = None) -> Any:
        return self.until(
            lambda: next(
                (e for e in self.events if isinstance(e, kind) and child in (None, getattr(e, "child", None))), None
            )
        )

    def child(self, kind: Any = "worker", number: int = 0) -> Child:
        child = self.zygote.spawn(kind, number)
        self.event(ChildSpawned, child)
        return child

    def answer(self, child: Child) -> Any:
        """Its next message; an event loop would also poll the line for writing while it is `blocked`."""
        got: list[Any] = []

        def arrived() -> bool:
            child.flush()
            got.extend(child.messages())
            return bool(got)

        self.until(arrived, child)
        (message,) = got
        return message


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[Pool]:
    """One for all tests, because a zygote imports torch."""
    pool = Pool()
    yield pool
    assert pool.zygote.close()


@pytest.fixture
def pool(shared_pool: Pool) -> Iterator[Pool]:
    """It has no children before and after each test."""
    yield shared_pool
    for child in tuple(shared_pool.zygote._by_ticket.values()):
        child.kill()
        shared_pool.event(ChildExited, child)
        child.close()
    shared_pool.events.clear()


class Work:
    """A small dataset, a stream of it and a lane."""

    def __init__(self, root: Path) -> None:
        self.spec = photo_tree(root / "data", 12, broken=frozenset({5}))
        self.cache = root / "cache"
        self.index = index_of(self.spec, self.cache)
        self.lane = OwnLane(tiny_pipeline(), ROWS)

    def give(self, child: Child) -> None:
        child.send(AddStream(0, self.spec.to_wire(), str(self.index.path), "full", 3, places=list(self.index.places)))
        child.send(AddLane(0, 0, self.lane.pipeline.to_wire(), self.lane.layout.to_wire()), [self.lane.fd])

    def expected(self) -> list[tuple[bytes, int, int]]:
        twin = OwnLane(self.lane.pipeline, ROWS)
        fill(open_stream(self.spec, self.cache, "full"), [twin.lane], 0, ROWS, nothing)
        return twin.rows(0, ROWS)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    work = Work(tmp_path)
    yield work
    os.close(work.lane.fd)


def ends(pidfd: int) -> bool:
    """Waits for the end of a process that need not be a child of ours."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(PATIENCE_S * 1000))


def end_with_their_daemon(script: str) -> list[bool]:
    """Kills a process that runs `script`; says of each process whose pid it has printed whether it ends, too."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env) as daemon:
        assert daemon.stdout is not None
        pidfds = [os.pidfd_open(int(pid)) for pid in daemon.stdout.readline().split()]
        daemon.kill()
        daemon.wait()
    try:
        return [ends(pidfd) for pidfd in pidfds]
    finally:
        for pidfd in pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def endless_work(child: Child, tmp_path: Path) -> OwnLane:
    """Gives `child` more work than it can finish during a test."""
    spec = SyntheticImages(64, size=(512, 512))
    lane = OwnLane(tiny_pipeline(64), 1024)
    index = build_index(spec, tmp_path / "bank")
    child.send(AddStream(0, spec.to_wire(), str(index.path), "none", 0, places=list(index.places)))
    child.send(AddLane(0, 0, lane.pipeline.to_wire(), lane.layout.to_wire()), [lane.fd])
    for task in range(200):
        child.send(Fill(task, 0, [0], task * 1024, 1024))
    return lane


def stopped_at_a_sample(child: Child) -> bool:
    """Stops a worker; if that was between two samples, it continues."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(partial(leaks.stopped, child.pid))
    if not child.page.read().busy:
        os.kill(child.pid, signal.SIGCONT)
    return child.page.read().busy and leaks.stopped(child.pid)


def test_a_worker_process_fills_the_same_bytes_as_this_process(pool: Pool, work: Work) -> None:
    child = pool.child()
    work.give(child)
    child.send(Fill(1, 0, [0], 0, ROWS))
    filled = pool.answer(child)
    assert isinstance(filled, Filled)
    assert [row[1] for row in filled.bad] == [5, 5]
    assert work.lane.rows(0, ROWS) == work.expected()
    assert child.page.read().rows == ROWS


def test_a_killed_worker_is_seen_and_its_page_says_its_work(pool: Pool, tmp_path: Path) -> None:
    child = pool.child()
    lane = endless_work(child, tmp_path)
    pool.until(lambda: stopped_at_a_sample(child))
    child.kill()
    assert child.pidfd is not None
    assert ends(child.pidfd)
    exited = pool.event(ChildExited, child)
    assert (exited.status, exited.reason) == (-signal.SIGKILL, "killed by SIGKILL")
    stats = child.page.read()
    assert stats.busy
    assert stats.index == stats.position % 64
    with pytest.raises(ChannelClosed):
        pool.until(lambda: list(child.messages()) and False, child)
    child.kill()  # its pidfd still means this very process, so nobody is hit
    child.close()
    assert not pool.zygote._by_ticket
    os.close(lane.fd)


def test_what_is_sent_before_a_worker_runs_is_not_lost(work: Work) -> None:
    zygote = Zygote(Prepare(nice=0))
    zygote.start()  # not up yet
    child = zygote.spawn("worker", 0)
    work.give(child)
    child.send(Fill(1, 0, [0], 0, ROWS))
    deadline_s = time.monotonic() + PATIENCE_S
    answers: list[Any] = []
    while not answers and time.monotonic() < deadline_s:
        zygote.receive()
        answers += child.messages()
        time.sleep(0.01)
    assert [type(a) for a in answers] == [Filled]
    assert zygote.close()


def test_hanging_up_ends_a_worker_in_peace(pool: Pool) -> None:
    child = pool.child()
    child.close()
    assert pool.event(ChildExited, child).status == 0


def test_garbage_ends_the_worker_with_an_error(pool: Pool) -> None:
    child = pool.child()
    child.send(DropLane(7))
    assert pool.event(ChildExited, child).status == 70
    child.close()


def test_ctrl_c_in_the_terminal_ends_neither_zygote_nor_workers(pool: Pool, work: Work) -> None:
    child = pool.child()
    assert child.pid is not None
    os.kill(pool.pid, signal.SIGINT)
    os.kill(child.pid, signal.SIGINT)
    work.give(child)
    child.send(Fill(1, 0, [0], 0, 2))
    assert isinstance(pool.answer(child), Filled)
    assert pool.child(number=1).pid is not None


def test_sigterm_ends_a_worker(pool: Pool) -> None:
    child = pool.child()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGTERM)
    assert pool.event(ChildExited, child).status == -signal.SIGTERM
    child.close()


def test_a_child_has_no_descriptor_but_its_own_and_one_thread(pool: Pool) -> None:
    children = [pool.child(number=n) for n in range(3)]
    for child in children:
        child.send(AddStream(0, {"source": "none"}, "/nowhere", "none", 0))
        child.send(Fill(1, 0, [], 0, 1))
        pool.answer(child)  # it is in its loop
        assert len(os.listdir(f"/proc/{child.pid}/fd")) == 4  # stdin, stdout, stderr, its line
        status = Path(f"/proc/{child.pid}/status").read_text()
        assert "Threads:\t1\n" in status


def test_a_killed_zygote_takes_its_workers_and_another_can_start(pool: Pool, tmp_path: Path) -> None:
    busy, idle = pool.child(), pool.child(number=1)
    lane = endless_work(busy, tmp_path)
    pool.until(lambda: busy.page.read().busy)
    os.kill(pool.pid, signal.SIGKILL)
    gone = pool.event(ZygoteGone)
    assert gone.reason == "the zygote ended: killed by SIGKILL"
    assert set(gone.children) == {busy, idle}
    for child in gone.children:
        assert child.pidfd is not None
        assert ends(child.pidfd)
        child.close()
    pool.start()
    assert pool.child().pid is not None
    os.close(lane.fd)


def test_a_killed_daemon_leaves_no_process() -> None:
    script = (
        "import time\n"
        "from prepserver.worker.launch import Zygote\n"
        "from prepserver.protocol.work import Prepare\n"
        "zygote = Zygote(Prepare(nice=0))\n"
        "zygote.start()\n"
        "children = [zygote.spawn('worker', n) for n in range(2)]\n"
        "while not all(child.pid for child in children):\n"
        "    zygote.receive()\n"
        "    time.sleep(0.01)\n"
        "print(zygote.pid, *(child.pid for child in children), flush=True)\n"
        "time.sleep(600)\n"
    )
    assert end_with_their_daemon(script) == [True] * 3


def test_a_killed_daemon_leaves_no_process_stopped_when_named() -> None:
    """A process that is stopped as soon as the daemon has named it ends with the daemon, too."""
    script = (
        "import os, signal, time\n"
        "from prepserver.worker.launch import Zygote\n"
        "from prepserver.protocol.work import Prepare\n"
        "zygote = Zygote(Prepare(nice=0))\n"
        "zygote.start()\n"
        "zygote.wait_ready()\n"
        "pids = []\n"
        "for n in range(12):\n"
        "    child = zygote.spawn('worker', n)\n"
        "    while child.pid is None:\n"
        "        zygote.receive()\n"
        "    os.kill(child.pid, signal.SIGSTOP)\n"
        "    pids.append(child.pid)\n"
        "print(*pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    assert end_with_their_daemon(script) == [True] * 12


def test_closing_leaves_no_process_and_no_descriptor(tmp_path: Path) -> None:
    """Whatever the children are doing."""
    before = leaks.descriptors()
    pool = Pool()
    busy, stopped = pool.child(), pool.child(number=1)
    lane = endless_work(busy, tmp_path)
    assert stopped.pid is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    unheard = pool.zygote.spawn("worker", 2)
    pidfds = [os.pidfd_open(pid) for pid in (pool.pid, busy.pid, stopped.pid) if pid]
    assert pool.zygote.close()
    assert pool.zygote.close()
    for pidfd in pidfds:
        assert ends(pidfd)
        os.close(pidfd)
    assert unheard.fileno() == -1
    os.close(lane.fd)
    assert leaks.descriptors() == before


def test_a_zygote_that_is_closed_while_it_starts_is_gone() -> None:
    zygote = Zygote()
    zygote.start()
    assert zygote.pid is not None
    pidfd = os.pidfd_open(zygote.pid)
    assert zygote.close()
    assert ends(pidfd)
    os.close(pidfd)
