"""The worker processes: as many as asked for, replaced when they die, killed when they hang.

Tells its owner of workers that are up or lost and of tasks that are done; decides nothing about rows.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prepserver.daemon.poll import Poll
from prepserver.pipeline.spec import Codes
from prepserver.protocol import work
from prepserver.protocol.schema import ProtocolError
from prepserver.schedule.scheduler import CRASH_STRIKES, KILL_STRIKES, Suspect
from prepserver.telemetry.page import NO_LANE, WorkerStats
from prepserver.worker.channel import ChannelClosed
from prepserver.worker.launch import (
    Child,
    ChildExited,
    ChildSpawned,
    Zygote,
    ZygoteError,
    ZygoteGone,
    ZygoteReady,
)

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.1  # the first replacement comes at once, the next after this
_BACKOFF_MOST_S = 30.0
_HEALTHY_S = 60.0  # a worker that lived so long starts the backoff anew, and one that has filled a chunk
_INDEXER_TRIES = 3  # to kill one is easy, and none of those who wait for its listing has done anything wrong
_REAP_S = 2.0  # a killed process that is still there after this waits inside the kernel
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class NotConfined(Exception):
    """The sandbox that the settings ask for cannot be had; the text says what is missing."""


class PluginsBroken(Exception):
    """The plug-ins that the settings name cannot be loaded; the text names one and says why."""


class PluginsChanged(Exception):
    """The code of plug-ins is another one than when the daemon was started, so that rows would be mixed."""


class PoolEvents(Protocol):
    """What the pool's owner is told."""

    def setup_messages(self) -> Iterable[tuple[Any, Sequence[int]]]:
        """What a new worker must know before its first task: messages with their descriptors."""

    def worker_up(self, worker: int) -> None:
        """Worker `worker` takes tasks."""

    def worker_lost(self, worker: int, suspect: Suspect | None, strikes: int, stuck: bool) -> None:
        """It is gone, or (`stuck`) given up on while its process is still there."""

    def task_done(self, worker: int, message: work.Filled | work.Failed) -> None:
        """It ended a task."""


@dataclass(slots=True)
class Seat:
    """One of the pool's places, and the worker in it."""

    number: int
    child: Child | None = None
    since_s: float = 0.0
    failures: int = 0
    due_s: float = 0.0
    killed_s: float | None = None  # when its deadline passed
    blameless: bool = False  # killed because another worker was quicker, or ended to be replaced
    restarts: int = 0


@dataclass(slots=True)
class _Question:
    """A listing that somebody waits for."""

    request: work.BuildIndex
    report: Callable[[Any], None]
    tries: int = 0


class WorkerPool:
    """See the module. One owner thread, the main thread.

    Args:
        poll: The daemon's.
        events: Its owner.
        workers: How many.
        sample_timeout_s: Longest time for one sample.
        nice: Niceness of the children.
        log_level: Of the children.
        sandbox: See `Settings`.
        plugins: See `Settings`.
        plugin_read: See `Settings`.
    """

    def __init__(
        self,
        poll: Poll,
        events: PoolEvents,
        workers: int,
        sample_timeout_s: float,
        nice: int,
        log_level: str,
        sandbox: str = "auto",
        plugins: Sequence[str] = (),
        plugin_read: Sequence[str] = (),
    ) -> None:
        self._poll = poll
        self._events = events
        self._sample_timeout_ns = int(sample_timeout_s * 1e9)
        self._make_zygote: Callable[[], Zygote] = lambda: Zygote(nice, log_level.upper(), sandbox, plugins, plugin_read)
        self._zygote = self._make_zygote()
        self._plugins: work.Plugins = []
        self._sandbox = sandbox
        self._zygote_fd = -1
        self._zygote_failures = 0
        self._zygote_due_s = 0.0
        self.seats = [Seat(n) for n in range(workers)]
        self._by_worker: dict[int, Seat] = {}
        self._stuck: dict[int, Child] = {}  # killed, and still there
        self._indexers: dict[int, tuple[Child, _Question]] = {}
        self._unasked: list[_Question] = []  # until there is a zygote again
        self._waiting: set[int] = set()  # tickets of children whose line is full, watched for writing too

    def start(self) -> None:
        """Starts the zygote, which the workers are forked from. They come up as events.

        Raises:
            ZygoteError: It does not start.
            NotConfined: The settings ask for a whole sandbox, and a part is missing.
            PluginsBroken: A plug-in that the settings name cannot be loaded.
        """
        self._start_zygote()
        self._zygote.wait_ready()
        if self._zygote.broken:
            raise PluginsBroken(self._zygote.broken)
        self._plugins = self._zygote.plugins
        missing = self._zygote.unconfined
        if self._sandbox == "on" and missing:
            raise NotConfined(
                f'sandbox = "on", but this machine lacks {missing}. With "auto" the daemon starts without that'
            )
        if self._sandbox == "off":
            log.warning('sandbox = "off": workers parse files with all the rights of uid %d', os.getuid())
        elif missing:
            log.warning("the workers' sandbox is %s only: this machine lacks %s", self._zygote.sandbox, missing)
        self._read_zygote()

    @property
    def pids(self) -> list[int]:
        """Of the workers that run."""
        return [s.child.pid for s in self.seats if s.child is not None and s.child.pid is not None]

    @property
    def kernels(self) -> tuple[str, str]:
        """Which path makes rows, ``native`` or ``pure``, and why."""
        return self._zygote.kernels

    @property
    def sandbox(self) -> dict[str, str]:
        """The setting, the parts that workers have, and those that are missing and why."""
        return {"mode": self._sandbox, "parts": self._zygote.sandbox, "missing": self._zygote.unconfined}

    @property
    def plugins(self) -> list[dict[str, str]]:
        """Role, name, code and origin of each plug-in."""
        return [dict(zip(("role", "name", "code", "origin"), each, strict=True)) for each in self._plugins]

    @property
    def codes(self) -> Codes:
        """The plug-ins that a spec may name."""
        return {(role, name): code for role, name, code, _ in self._plugins}

    @property
    def up(self) -> int:
        """Workers that take tasks."""
        return len(self._by_worker)

    def send(self, worker: int, message: Any, fds: Sequence[int] = ()) -> None:
        """Sends to one worker; one that is gone is noticed elsewhere."""
        seat = self._by_worker.get(worker)
        if seat is not None and seat.child is not None:
            self._send(seat.child, message, fds)

    def broadcast(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Sends to every worker that is up."""
        for worker in list(self._by_worker):
            self.send(worker, message, fds)

    def end(self, worker: int) -> None:
        """Kills a worker that has done nothing wrong; another takes its seat at once."""
        seat = self._by_worker.get(worker)
        if seat is not None and seat.child is not None and seat.killed_s is None:
            seat.killed_s, seat.blameless = time.monotonic(), True
            seat.child.kill()

    def at_sample(self, index: int) -> list[tuple[int, int]]:
        """Workers that have sample `index` of some source in hand now, with the task that it belongs to."""
        found = []
        for worker, seat in self._by_worker.items():
            stats = seat.child.page.read() if seat.child is not None else None
            if stats is not None and stats.busy and stats.index == index:
                found.append((worker, stats.task))
        return found

    def end_if_idle(self, worker: int) -> None:
        """Kills a worker that has had a task for too long and is at no sample: it hangs in opening a source."""
        seat = self._by_worker.get(worker)
        if seat is None or seat.child is None or seat.killed_s is not None or seat.child.page.read().busy:
            return
        log.warning("worker %d has not begun its task for too long: killed", seat.number)
        seat.killed_s = time.monotonic()
        seat.child.kill()

    def build_index(self, request: work.BuildIndex, report: Callable[[Any], None]) -> Callable[[], None]:
        """Lists a source in a process of its own: storage may hang.

        Args:
            request: What to list.
            report: Called with `Indexing` now and then, and at last with `Indexed` or `IndexFailed`.

        Returns:
            What cancels it: the process is killed, and `report` is not called any more.
        """
        question = _Question(request, report)
        self._ask_indexer(question)
        return lambda: self._cancel(question)

    def tick(self, now_s: float) -> None:
        """Deadlines and replacements; call it several times a second."""
        for child in list(self._stuck.values()):
            # not only the zygote's word: the one that forked it may itself be gone
            if child.ended_by(0.0):
                self._unstuck(child)
        if self._zygote_fd < 0:
            if now_s >= self._zygote_due_s:
                self._restart_zygote(now_s)
            return
        if self._zygote.overdue:
            log.error("the zygote did not come up again; starting another")
            self._zygote_gone("overdue", now_s)
            return
        now_ns = time.monotonic_ns()
        for seat in self.seats:
            if seat.child is None:
                if self._zygote.ready and now_s >= seat.due_s:
                    self._fill(seat)
            else:
                self._check_deadline(seat, now_ns, now_s)

    def close(self, timeout_s: float) -> bool:
        """Ends every process. False if one could not be ended (it waits for dead storage)."""
        for seat in self.seats:
            if seat.child is not None:
                self._forget(seat.child)
        for child in self._stuck.values():
            child.close()
        self._unasked.clear()
        for child, _ in self._indexers.values():
            self._poll.forget(child.fileno())
        if self._zygote_fd >= 0:
            self._poll.forget(self._zygote_fd)
            self._zygote_fd = -1
        return self._zygote.close(timeout_s)

    # -- the zygote ---------------------------------------------------------------------------------

    def _start_zygote(self) -> None:
        self._zygote.start()
        self._zygote_fd = self._zygote.fileno()
        self._poll.watch(self._zygote_fd, self._read_zygote)

    def _restart_zygote(self, now_s: float) -> None:
        self._zygote = self._make_zygote()
        try:
            self._start_zygote()
        except ZygoteError as e:
            self._zygote_failures += 1
            self._zygote_due_s = now_s + _backoff_s(self._zygote_failures)
            log.error("cannot start the zygote: %s", e)

    def _read_zygote(self) -> None:
        for event in self._zygote.receive():
            match event:
                case ZygoteReady():
                    self._zygote_ready()
                case ChildSpawned(child):
                    self._spawned(child)
                case ChildExited(child, status, reason):
                    self._exited(child, status, reason)
                case ZygoteGone(reason, children):
                    self._zygote_gone(reason, time.monotonic(), children)
        if self._zygote_fd >= 0:
            self._poll.watch(self._zygote_fd, self._zygote_event, write=self._zygote.blocked)

    def _zygote_ready(self) -> None:
        if self._zygote.plugins != self._plugins:
            changed = self._zygote.broken or "the files of plug-ins have changed since this daemon was started"
            raise PluginsChanged(f"{changed}. Rows of two versions must not meet in one stream: start the daemon again")
        self._zygote_failures = 0
        path, why = self.kernels
        if path == "pure":
            log.warning("rows are made without the compiled kernels, at half the speed: %s", why)
        unasked, self._unasked = self._unasked, []
        for question in unasked:
            self._ask_indexer(question)
        for seat in self.seats:
            if seat.child is None:
                self._fill(seat)

    def _zygote_event(self) -> None:
        self._zygote.flush()
        self._read_zygote()

    def _zygote_gone(self, reason: str, now_s: float, children: Sequence[Child] = ()) -> None:
        log.error("%s; its workers went with it, all are started again", reason)
        if self._zygote_fd >= 0:
            self._poll.forget(self._zygote_fd)
            self._zygote_fd = -1
        for seat in self.seats:
            if seat.child is not None:
                self._vacate(seat, suspect=None, strikes=0, stuck=False)
        for child, question in list(self._indexers.values()):
            self._lost_indexer(child, question, reason)
        for child in children:  # also one that had done its work, and whose end was still to be told
            if child.ticket not in self._stuck:
                child.close()
        self._zygote.close(_REAP_S)
        self._zygote_failures += 1
        # the first time at once: whoever killed it may have meant no harm
        self._zygote_due_s = now_s + (0.0 if self._zygote_failures == 1 else _backoff_s(self._zygote_failures))

    # -- workers ------------------------------------------------------------------------------------

    def _fill(self, seat: Seat) -> None:
        try:
            seat.child = self._zygote.spawn("worker", seat.number)
        except ZygoteError as e:
            log.error("cannot start worker %d: %s", seat.number, e)
            seat.due_s = time.monotonic() + _BACKOFF_FIRST_S
            return
        seat.since_s = time.monotonic()
        seat.killed_s = None
        seat.blameless = False

    def _spawned(self, child: Child) -> None:
        seat = self._seat_of(child)
        if seat is None:
            if child.ticket not in self._indexers:  # it has answered already or was cancelled, and was hung up on
                child.kill()
                child.close()
            return
        self._by_worker[child.ticket] = seat
        self._poll.watch(child.fileno(), lambda: self._read_worker(child, 1))
        for message, fds in self._events.setup_messages():
            self._send(child, message, fds)
        self._events.worker_up(child.ticket)

    def _read_worker(self, child: Child, most: int | None = None) -> None:
        try:
            if child.blocked:
                child.flush()
            for message in child.receive(most):
                self._events.task_done(child.ticket, message)
        except ChannelClosed:
            self._poll.forget(child.fileno())  # the zygote says how it ended
            return
        except ProtocolError as e:
            log.error("worker %d says what it may not (%s): killed", child.number, e)
            child.kill()
            return
        self._rewatch(child)

    def _exited(self, child: Child, status: int | None, reason: str) -> None:
        if child.ticket in self._indexers:
            # what it had to say may still be unread
            self._read_indexer(child)
            if found := self._indexers.get(child.ticket):
                self._lost_indexer(child, found[1], reason)
            return
        if child.ticket in self._stuck:
            self._unstuck(child)
            return
        seat = self._seat_of(child)
        if seat is None:
            child.close()
            return
        if child.ticket in self._by_worker:
            self._read_worker(child)  # tasks that it had done count
        stats = child.page.read()
        # One that never filled a chunk must not end again and again, nor what a plug-in does at a sample pass for it.
        if status == work.EXIT_SEALED and stats.tasks and not stats.busy:
            seat.blameless = True
            seat.restarts -= 1  # planned: nothing for status to show
            self._vacate(seat, None, 0, stuck=False)
            return
        suspect = _suspect(stats)
        crashed = seat.killed_s is not None or (status is not None and -status in _CRASHES)
        log.warning(
            "worker %d (pid %s) ended: %s%s%s", child.number, child.pid, reason,
            f", at {_words(suspect)}" if suspect is not None else "",
            " after its time for one sample" if seat.killed_s is not None and not seat.blameless else "",
        )  # fmt: skip
        self._vacate(seat, suspect, CRASH_STRIKES if crashed else KILL_STRIKES, stuck=False)

    def _vacate(self, seat: Seat, suspect: Suspect | None, strikes: int, *, stuck: bool) -> None:
        child, now_s = seat.child, time.monotonic()
        assert child is not None
        if seat.blameless:
            suspect, strikes = None, 0
        else:
            healthy = now_s - seat.since_s > _HEALTHY_S or child.page.read().tasks > 0
            seat.failures = 0 if healthy else seat.failures + 1
        seat.due_s = now_s + (0.0 if seat.failures <= 1 else _backoff_s(seat.failures - 1))
        seat.child = None
        seat.restarts += 1
        if self._by_worker.pop(child.ticket, None) is not None:
            self._events.worker_lost(child.ticket, suspect, strikes, stuck)
        if stuck:
            self._poll.forget(child.fileno())
            self._stuck[child.ticket] = child
        else:
            self._forget(child)
            child.close()
        if seat.due_s <= now_s and self._zygote.ready and self._zygote_fd >= 0:
            self._fill(seat)

    def _check_deadline(self, seat: Seat, now_ns: int, now_s: float) -> None:
        child = seat.child
        if child is None or child.pidfd is None:
            return
        if seat.killed_s is not None:
            if now_s - seat.killed_s > _REAP_S:
                log.error(
                    "worker %d (pid %s) does not die: it waits inside the kernel, probably for storage. It is "
                    "replaced; the rows that it may still write are kept out of use",
                    child.number, child.pid,
                )  # fmt: skip
                self._vacate(seat, _suspect(child.page.read()), CRASH_STRIKES, stuck=True)
            return
        stats = child.page.read()
        suspect = _suspect(stats)
        if suspect is not None and now_ns - stats.started_ns > self._sample_timeout_ns:
            log.warning(
                "worker %d is at %s for more than sample_timeout_s = %g s: killed",
                child.number, _words(suspect), self._sample_timeout_ns / 1e9,
            )  # fmt: skip
            seat.killed_s = now_s
            child.kill()

    def _unstuck(self, child: Child) -> None:
        del self._stuck[child.ticket]
        child.close()
        log.info("worker %d, given up on before, has ended at last", child.number)
        self._events.worker_lost(child.ticket, None, 0, False)

    def _seat_of(self, child: Child) -> Seat | None:
        return next((s for s in self.seats if s.child is child), None)

    # -- indexers -----------------------------------------------------------------------------------

    def _ask_indexer(self, question: _Question) -> None:
        if self._zygote_fd < 0:
            self._unasked.append(question)
            return
        try:
            child = self._zygote.spawn("indexer", 0)
        except ZygoteError as e:
            if isinstance(e.__cause__, ChannelClosed):  # it has just ended, which is an event of its own
                self._unasked.append(question)
            else:
                question.report(work.IndexFailed(f"cannot list the source now: {e}; try again in a few seconds"))
            return
        question.tries += 1
        self._indexers[child.ticket] = (child, question)
        self._poll.watch(child.fileno(), lambda: self._read_indexer(child))
        self._send(child, question.request, ())

    def _cancel(self, question: _Question) -> None:
        self._unasked = [other for other in self._unasked if other is not question]
        for child, asked in list(self._indexers.values()):
            if asked is question:
                self._close_indexer(child)

    def _lost_indexer(self, child: Child, question: _Question, reason: str) -> None:
        """It has ended without an answer: another one is asked, for a job that comes back must not fail of it."""
        log.warning("an indexer ended without an answer (%s), at its try %d", reason, question.tries)
        self._close_indexer(child)
        if question.tries < _INDEXER_TRIES:
            self._ask_indexer(question)
        else:
            question.report(work.IndexFailed(f"the indexer ended: {reason}; {_INDEXER_TRIES} of them did"))

    def _read_indexer(self, child: Child) -> None:
        found = self._indexers.get(child.ticket)
        if found is None:
            return
        report = found[1].report
        try:
            child.flush()
            for message in child.receive():
                if isinstance(message, work.Indexing):
                    report(message)
                else:
                    self._end_indexer(child, report, message)
                    return
        except ChannelClosed:
            self._poll.forget(child.fileno())
            return
        except ProtocolError as e:
            self._end_indexer(child, report, work.IndexFailed(f"the indexer said {e}"))
            return
        self._rewatch(child)

    def _end_indexer(self, child: Child, report: Callable[[Any], None], message: Any) -> None:
        self._close_indexer(child)
        report(message)

    def _close_indexer(self, child: Child) -> None:
        del self._indexers[child.ticket]
        self._forget(child)
        child.kill()
        child.close()

    # -- lines --------------------------------------------------------------------------------------

    def _send(self, child: Child, message: Any, fds: Sequence[int]) -> None:
        try:
            child.send(message, fds)
        except ChannelClosed:
            return  # its end is an event of its own
        self._rewatch(child)

    def _rewatch(self, child: Child) -> None:
        """Watches for room to write while messages wait, and only then: a line mostly has room."""
        if child.fileno() < 0 or child.blocked == (child.ticket in self._waiting):
            return
        self._waiting.symmetric_difference_update({child.ticket})
        if child.kind == "indexer":
            self._poll.watch(child.fileno(), lambda: self._read_indexer(child), write=child.blocked)
        else:
            self._poll.watch(child.fileno(), lambda: self._read_worker(child, 1), write=child.blocked)

    def _forget(self, child: Child) -> None:
        self._waiting.discard(child.ticket)
        if child.fileno() >= 0:
            self._poll.forget(child.fileno())


def _suspect(stats: WorkerStats) -> Suspect | None:
    return Suspect(stats.index, None if stats.lane == NO_LANE else stats.lane) if stats.busy else None


def _words(suspect: Suspect) -> str:
    return f"sample {suspect.index}" + ("" if suspect.lane is None else f" (its row of lane {suspect.lane})")


def _backoff_s(failures: int) -> float:
    return float(min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** (failures - 1)))
