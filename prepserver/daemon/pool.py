"""The worker processes: replaced when they die, killed when they hang.

The pool tells the driver which workers are up or lost, and decides nothing about rows. Its workers come from engines
(`prepserver.daemon.engine`): a worker may be a process of this machine or an actor elsewhere, and the coordinator does
not know which. This module is long because it holds the whole life of a worker.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prepserver.config import ConfigError, Settings
from prepserver.daemon import awake
from prepserver.daemon.driver import Driver
from prepserver.daemon.engine import Engine
from prepserver.daemon.listings import Listings
from prepserver.daemon.poll import Poll
from prepserver.daemon.seat import Seat, in_words, strikes_of, suspect_of
from prepserver.memory.budget import worker_bytes
from prepserver.pipeline.spec import Codes
from prepserver.protocol import work
from prepserver.protocol.schema import ProtocolError
from prepserver.schedule.events import WorkerLost, WorkerUp
from prepserver.schedule.records import Suspect
from prepserver.schedule.strikes import CRASH_STRIKES
from prepserver.worker import launch
from prepserver.worker.channel import CannotPass, ChannelClosed
from prepserver.worker.child import Child
from prepserver.worker.launch import START_TIMEOUT_S

log = logging.getLogger(__name__)

_BY_WHOM = ", by somebody, or by the kernel because memory ran out (`dmesg` says so; memory.events of its cgroup, too)"
_REAP_S = 2.0  # a killed process that has not ended after this waits in the kernel


class PluginsChanged(Exception):
    """The code of plug-ins has changed since the daemon started, so rows of two versions would mix."""


class WorkerPool:
    """The pool, with `workers` workers on this machine at first. One owner thread, the main thread.

    Attributes:
        engines: Where the workers come from: the zygote, and the bridge if there is one.
        listings: The listings of sources, because the zygote forks the indexers, too.
    """

    def __init__(
        self, poll: Poll, driver: Driver, setup: Callable[[], Iterable[tuple[Any, Sequence[int]]]],
        settings: Settings, workers: int, cache_dir: Path,
    ) -> None:  # fmt: skip
        self._poll = poll
        self._driver = driver
        self._setup = setup  # the first messages for a worker, with their descriptors
        self._task_done: Callable[[int, work.Filled | work.Failed], None]
        self._settings = settings
        worker_memory_bytes = settings.worker_memory_bytes or (0 if settings.plugins else worker_bytes(workers))
        prepare = work.Prepare(
            settings.nice, settings.log_level.upper(), settings.log_format, settings.sandbox, list(settings.plugins),
            list(settings.plugin_read), list(settings.url_roots),
            settings.sample_timeout_s / 2,  # so that a worker which waits for a dead store does not count as hung
            worker_memory_bytes,
        )  # fmt: skip
        self._zygote = Engine(poll, launch.Zygote(prepare), self._read_engine)
        self.engines = [self._zygote]
        self._plugins: work.Plugins = []
        self.seats = [Seat(n, self._zygote) for n in range(workers)]
        if settings.engine == "ray":
            there = replace(prepare, worker_bytes=0, ray_address=settings.ray_address)
            bridge = launch.Zygote(there, "the bridge to Ray", "prepserver.engine.bridge")
            self.engines.append(Engine(poll, bridge, self._read_engine))
            self.seats += [Seat(workers + n, self.engines[1]) for n in range(settings.remote_workers)]
        self._up: dict[int, Child] = {}  # workers that can take tasks
        self._stuck: dict[int, Child] = {}  # killed and replaced, but not ended
        self.listings = Listings(poll, self._spawn_indexer, cache_dir, awake.now_s)
        self.died = 0  # workers that ended by themselves, or were killed, but not as planned

    def start(self, task_done: Callable[[int, work.Filled | work.Failed], None], lifeline_fd: int = -1) -> None:
        """Starts the zygote, which forks the workers. They come up as events, and report what they have done.

        Raises:
            ZygoteError: It does not start, or the process of `lifeline_fd` has ended.
            ConfigError: A plug-in cannot be loaded, or with ``sandbox = "on"`` the machine lacks a part of it.
        """
        self._task_done = task_done
        self._zygote.start()
        self._zygote.process.wait_ready(lifeline_fd=lifeline_fd)
        about = self._zygote.process.about
        if about.broken:
            raise ConfigError(about.broken)
        self._plugins = about.plugins
        missing, mode = about.unconfined, self._settings.sandbox
        if mode == "on" and missing:
            raise ConfigError(
                f'sandbox = "on", but this machine lacks {missing}. With "auto" the daemon starts without it'
            )
        if mode == "off":
            log.warning('sandbox = "off": workers parse files with all rights of uid %d', os.getuid())
        elif missing:
            log.warning("the workers' sandbox has only %s: this machine lacks %s", about.sandbox, missing)
        if self._settings.url_roots:
            log.info("workers have a network, to read below %s", ", ".join(self._settings.url_roots))
        self._read_engine(self._zygote)
        # ORDER: after the zygote is up, because it may refuse the settings.
        for engine in self.engines[1:]:
            engine.restart(awake.now_s())

    @property
    def kernels(self) -> tuple[str, str]:
        """The kernels that make rows, ``native`` or ``pure``, and why."""
        about = self._zygote.process.about
        return about.kernels, about.why

    @property
    def sandbox(self) -> dict[str, str]:
        """The setting, the parts that workers have, and the missing parts with the reason."""
        about = self._zygote.process.about
        return {"mode": self._settings.sandbox, "parts": about.sandbox, "missing": about.unconfined}

    @property
    def plugins(self) -> list[dict[str, str]]:
        """Role, name, code digest and origin of each plug-in."""
        return [dict(zip(("role", "name", "code", "origin"), each, strict=True)) for each in self._plugins]

    @property
    def codes(self) -> Codes:
        """The code digests of the plug-ins that a spec may name."""
        return {(role, name): code for role, name, code, _ in self._plugins}

    @property
    def up(self) -> int:
        """Workers that can take tasks."""
        return len(self._up)

    def send(self, worker: int, message: Any, fds: Sequence[int] = ()) -> None:
        """Sends to one worker; does nothing if it is gone."""
        if (child := self._up.get(worker)) is not None:
            self._send(child, message, fds)

    def broadcast(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Sends to every worker that is up."""
        for child in list(self._up.values()):
            self._send(child, message, fds)

    @property
    def size(self) -> int:
        """How many seats this machine has, without those of workers that retire."""
        return sum(not seat.retires for seat in self.local_seats)

    @property
    def local_up(self) -> int:
        """Workers of this machine that can take tasks."""
        return sum(not child.host for child in self._up.values())

    @property
    def local_seats(self) -> list[Seat]:
        """Seats of this machine's workers."""
        return [seat for seat in self.seats if seat.engine is self._zygote]

    def grow(self) -> None:
        """Adds a worker on this machine."""
        taken = {seat.number for seat in self.seats}
        seat = Seat(next(n for n in range(len(taken) + 1) if n not in taken), self._zygote)
        self.seats.append(seat)
        if seat.engine.is_up:
            self._fill(seat)

    def retire(self) -> int | None:
        """Retires the last seat whose worker is up; returns that worker, which the caller ends when it has no task."""
        for seat in sorted(self.local_seats, key=lambda seat: -seat.number):
            if not seat.retires and seat.child is not None and seat.child.ticket in self._up:
                seat.retires = True
                return seat.child.ticket
        return None

    def end(self, worker: int) -> None:
        """Kills a worker without blame. Another one takes its seat at once, unless it retires."""
        if (child := self._up.get(worker)) is not None:
            self._kill(child, blameless=True)

    def who(self, worker: int) -> tuple[int, int]:
        """Number and pid of a worker; (-1, 0) if it has ended."""
        child = self._up.get(worker)
        return (-1, 0) if child is None else (child.number, child.pid or 0)

    def at_sample(self, index: int) -> list[tuple[int, int]]:
        """Workers that are working on sample `index` of any source, each with its task."""
        found = []
        for worker, child in self._up.items():
            stats = child.page.read()
            if stats.busy and stats.index == index:
                found.append((worker, stats.task))
        return found

    def end_if_idle(self, worker: int) -> None:
        """Kills a worker whose task is overdue if it has begun no sample: it hangs while it opens a source."""
        child = self._up.get(worker)
        if child is not None and not child.page.read().busy and self._kill(child):
            limit_s = self._settings.sample_timeout_s
            log.warning("killed worker %d: no sample begun within sample_timeout_s = %g s", child.number, limit_s)

    def tick(self, now_s: float) -> None:
        """Handles deadlines and replacements; call it several times a second."""
        for child in list(self._stuck.values()):
            # The zygote that forked it may be gone and cannot report its end.
            if child.ended_by(0.0):
                self._unstuck(child)
        for engine in self.engines:
            if not engine.runs:
                engine.restart(now_s)
            elif engine.process.overdue:
                self._engine_gone(engine, f"{engine.process.name} was not up after {START_TIMEOUT_S:.0f} s", now_s)
        # Remote workers may wait for room in Ray's cluster for any time.
        asked_s = [seat.since_s for seat in self.local_seats if seat.child is not None and seat.child.pidfd is None]
        if any(now_s - each > START_TIMEOUT_S for each in (*asked_s, *self.listings.asked_s)):
            self._kill_engine(self._zygote, f"it started no process within {START_TIMEOUT_S:.0f} s")
        for seat in list(self.seats):
            if seat.child is None:
                if seat.engine.is_up and now_s >= seat.due_s:
                    self._fill(seat)
            else:
                self._check_deadline(seat, now_s)

    def close(self, timeout_s: float) -> bool:
        """Ends every process; nothing is sent any more. Returns False if one waits for dead storage and did not end."""
        for seat in self.seats:
            if seat.child is not None:
                self._poll.forget(seat.child.fileno())
        for child in self._stuck.values():
            child.close()
        self.listings.close()
        deadline_s = time.monotonic() + timeout_s
        clean = True
        self._up.clear()
        for engine in self.engines:
            engine.forget()
            clean &= engine.process.close(max(0.0, deadline_s - time.monotonic()))
        return clean

    # -- engines ------------------------------------------------------------------------------------

    def _read_engine(self, engine: Engine) -> None:
        engine.process.flush()
        for event in engine.process.receive():
            match event:
                case launch.ZygoteReady():
                    self._engine_ready(engine)
                case launch.ChildSpawned(child):
                    self._spawned(child)
                case launch.ChildExited(child, status, reason):
                    self._exited(child, status, reason)
                case launch.ZygoteGone(reason, children):
                    self._engine_gone(engine, reason, awake.now_s(), children)
        engine.watch_writing()

    def _engine_ready(self, engine: Engine) -> None:
        if engine is self._zygote:
            self._check_zygote()
        if engine.process.about.broken:
            return  # it will end, and this is the reason
        engine.came_up()
        for seat in self.seats:
            if seat.engine is engine and seat.child is None:
                self._fill(seat)

    def _check_zygote(self) -> None:
        about = self._zygote.process.about
        if about.broken or about.plugins != self._plugins:
            changed = about.broken or "the files of plug-ins have changed since this daemon was started"
            raise PluginsChanged(f"{changed}. Rows of two versions must not mix in one stream: start the daemon again")
        if about.kernels == "pure":
            log.warning("workers make rows without the compiled kernels, at half the speed: %s", about.why)
        self.listings.zygote_ready()

    def _engine_gone(self, engine: Engine, reason: str, now_s: float, children: Sequence[Child] = ()) -> None:
        why = engine.process.about.broken or reason
        log.error("%s; its workers have ended with it, and are started again", why)
        engine.gone(why, now_s)
        for seat in list(self.seats):
            if seat.engine is engine and seat.child is not None:
                # Its workers were killed with it, but one that waits in the kernel may still write its rows.
                self._vacate(seat, suspect=None, strikes=0, stuck=not seat.child.ended_by(time.monotonic() + _REAP_S))
        if engine is self._zygote:
            self.listings.zygote_gone(reason)
        for child in children:  # among them indexers that have answered, whose end was not reported
            if child.ticket not in self._stuck:
                child.close()
        engine.process.close(_REAP_S)

    def _kill_engine(self, engine: Engine, why: str) -> None:
        if engine.process.kill():  # its end is an event, which may be late if it waits in the kernel
            log.error("killed %s: %s. Another one is started when it has ended", engine.process.name, why)

    def _spawn_indexer(self) -> Child:
        if not self._zygote.runs:
            raise launch.ZygoteAbsent("the zygote is starting again")
        return self._zygote.process.spawn("indexer", 0)

    # -- workers ------------------------------------------------------------------------------------

    def _fill(self, seat: Seat) -> None:
        try:
            child = seat.engine.process.spawn("worker", seat.number)
        except launch.ZygoteError as e:
            wait_s = seat.failed_to_start(awake.now_s())
            log.error("cannot start worker %d: %s. Trying again in %.1f s", seat.number, e, wait_s)
            return
        seat.took(child, awake.now_s())

    def _spawned(self, child: Child) -> None:
        seat = self._seat_of(child)
        if seat is None:
            if not self.listings.holds(child):  # an indexer that has answered already, or is no longer needed
                child.kill()
                child.close()
            return
        self._up[child.ticket] = child
        self._poll.watch(child.fileno(), lambda: self._read_worker(child, 1))
        for message, fds in self._setup():
            self._send(child, message, fds)
        self._driver.happened(WorkerUp(child.ticket))

    def _read_worker(self, child: Child, most: int | None = None) -> None:
        try:
            if child.blocked:
                child.flush()
            for message in child.messages(most):
                self._task_done(child.ticket, message)
        except CannotPass as e:
            self._lacks_a_message(child, e)
        except ChannelClosed:
            self._poll.forget(child.fileno())  # the zygote will report how it ended
        except ProtocolError as e:
            log.error("killed worker %d: protocol error: %s", child.number, e)
            child.kill()
        else:
            self._poll.watch_writing(child.fileno(), child.blocked)

    def _exited(self, child: Child, status: int | None, reason: str) -> None:
        if self.listings.holds(child):
            self.listings.exited(child, reason)
            return
        if child.ticket in self._stuck:
            self._unstuck(child)
            return
        seat = self._seat_of(child)
        if seat is None:
            child.close()
            return
        if child.ticket in self._up:
            self._read_worker(child)  # tasks that it has finished count
        stats = child.page.read()
        # Before the first chunk, or at a sample (a plug-in may exit), this status is a failure.
        if status == work.EXIT_SEALED and stats.tasks and not stats.busy:
            seat.blameless = True
            seat.restarts -= 1  # the status counts no planned replacement
            self._vacate(seat, None, 0, stuck=False)
            return
        suspect = suspect_of(stats)
        strikes = CRASH_STRIKES if seat.killed_s is not None else strikes_of(status)
        level = logging.DEBUG if seat.retires and seat.blameless else logging.WARNING
        log.log(
            level, "worker %d (pid %s) ended: %s%s%s", child.number, child.pid, reason,
            f", at {in_words(suspect)}" if suspect is not None else "",
            " because it exceeded sample_timeout_s" if seat.killed_s is not None and not seat.blameless else
            _BY_WHOM * (seat.killed_s is None and status == -signal.SIGKILL),
        )  # fmt: skip
        self._vacate(seat, suspect, strikes, stuck=False)

    def _vacate(self, seat: Seat, suspect: Suspect | None, strikes: int, *, stuck: bool) -> None:
        child, now_s = seat.child, awake.now_s()
        assert child is not None
        if seat.blameless:
            suspect, strikes = None, 0
        else:
            self.died += 1
        seat.lost(now_s, child.page.read().tasks, suspect)
        if self._up.pop(child.ticket, None) is not None:
            self._driver.happened(WorkerLost(child.ticket, suspect, strikes, stuck))
        self._poll.forget(child.fileno())
        if stuck:
            self._stuck[child.ticket] = child
        else:
            child.close()
        if seat.retires:
            self.seats.remove(seat)
        elif seat.due_s <= now_s and seat.engine.is_up:
            self._fill(seat)

    def _check_deadline(self, seat: Seat, now_s: float) -> None:
        child = seat.child
        if child is None or child.pidfd is None:
            return
        if seat.killed_s is not None:
            if now_s - seat.killed_s > _REAP_S and child.host:
                self._kill_engine(seat.engine, f"it did not end worker {child.number} within {_REAP_S:g} s")
            elif now_s - seat.killed_s > _REAP_S:
                log.error(
                    "worker %d (pid %s) was killed but has not ended: it waits in the kernel, probably for storage. "
                    "Another worker replaces it; rows that it may still write are not used",
                    child.number, child.pid,
                )  # fmt: skip
                self._vacate(seat, suspect_of(child.page.read()), CRASH_STRIKES, stuck=True)
            return
        stats = child.page.read()
        suspect = suspect_of(stats)
        if suspect is not None and awake.since_s(stats.started_ns / 1e9) > self._settings.sample_timeout_s:
            log.warning(
                "killed worker %d: it was at %s for more than sample_timeout_s = %g s",
                child.number, in_words(suspect), self._settings.sample_timeout_s,
            )  # fmt: skip
            self._kill(child)

    def _kill(self, child: Child, *, blameless: bool = False) -> bool:
        seat = self._seat_of(child)
        if seat is None or seat.killed_s is not None:
            return False
        seat.killed_s, seat.blameless = awake.now_s(), blameless
        child.kill()
        return True

    def _unstuck(self, child: Child) -> None:
        del self._stuck[child.ticket]
        child.close()
        log.info("worker %d, which was killed and replaced, has ended now", child.number)
        self._driver.happened(WorkerLost(child.ticket, None, 0, False))

    def _lacks_a_message(self, child: Child, why: CannotPass) -> None:
        """Replaces a worker that could not be told something, such as a lane."""
        log.error("killed worker %d, which must be told again: %s", child.number, why)
        if not self._kill(child, blameless=True):
            child.kill()

    def _seat_of(self, child: Child) -> Seat | None:
        return next((s for s in self.seats if s.child is child), None)

    def _send(self, child: Child, message: Any, fds: Sequence[int]) -> None:
        try:
            child.send(message, fds)
        except CannotPass as e:
            self._lacks_a_message(child, e)
            return
        except ChannelClosed:
            return  # its end is an event of its own
        self._poll.watch_writing(child.fileno(), child.blocked)
