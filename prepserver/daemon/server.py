"""The life of the daemon: it starts its parts, runs one loop, handles signals, and ends everything.

One thread, one epoll. Messages of clients (`clients`) and workers (`reports`) become events; the coordinator
(`prepserver.schedule`) decides; `executor` carries out its actions.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepserver import __version__
from prepserver.audit import logfile
from prepserver.config import ConfigError, Settings, auto_most_workers, reload
from prepserver.daemon import awake, quarantine
from prepserver.daemon.about import about
from prepserver.daemon.access import Access
from prepserver.daemon.attach import Listener
from prepserver.daemon.attachments import Attachments
from prepserver.daemon.caches import Caches
from prepserver.daemon.clients import Clients
from prepserver.daemon.descriptors import DescriptorsShort, clients_allowed, raise_limit
from prepserver.daemon.driver import Driver
from prepserver.daemon.executor import Executor, setup
from prepserver.daemon.gpus import Gpus
from prepserver.daemon.headcount import PoolSizer
from prepserver.daemon.ledger import Ledger
from prepserver.daemon.peers import Peers
from prepserver.daemon.poll import Poll
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.questions import Questions
from prepserver.daemon.reports import Reports
from prepserver.daemon.rings import Rings
from prepserver.daemon.runtime_dir import Door, RuntimeDir
from prepserver.daemon.status import snapshot
from prepserver.daemon.systemd import Notifier
from prepserver.daemon.watch import Watch
from prepserver.memory.budget import machine_free_bytes
from prepserver.order import Order, make_order
from prepserver.pipeline.batches import batch_rows
from prepserver.pipeline.sources import arrangement_of
from prepserver.protocol.messages import Attach
from prepserver.schedule.asked import shard_of
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.events import Tick
from prepserver.telemetry.logs import counted
from prepserver.worker.launch import START_TIMEOUT_S, ZygoteError

log = logging.getLogger(__name__)

_TICK_S = 0.2
KILL_S = 3.0
"""Longest time to end the processes after the drain."""

Reread = Callable[[int], Settings]
"""Reads the settings again; it is given the memory that this daemon holds."""


class Daemon:
    """A running daemon.

    Args:
        settings: Its settings.
        runtime_dir: Its runtime directory; locked, unless this daemon will replace another one.
        workers: Worker processes at the start.
        memory_bytes: Budget for rings.
        cache_memory_bytes: Budget for caches in memory.
        cache_dir: Folder of the listings.
        state_dir: Folder of quarantined samples and the jobs' logs.
        lifeline: Pid of a process whose end ends the daemon at once.
        door: Who may connect to the sockets that the daemon makes.
        attach_socket: The attach socket, if it listens already (socket activation).
        reread: Reads the settings again at SIGHUP; without it that signal means stop.
        most_clients: Connections for which it has descriptors.
    """

    def __init__(
        self, settings: Settings, runtime_dir: RuntimeDir, *, workers: int, memory_bytes: int, cache_memory_bytes: int,
        cache_dir: Path, state_dir: Path, lifeline: int | None, door: Door, attach_socket: socket.socket | None,
        reread: Reread | None, most_clients: int,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._dir = runtime_dir
        self._door = door
        self._passed = attach_socket
        self._reread = reread
        self._started_s = time.monotonic()
        self._poll = Poll()
        self._coordinator = Coordinator(
            _order_of,
            settings.chunk_rows,
            (settings.workers or max(workers, auto_most_workers())) + settings.remote_workers,
        )
        self._rings = Rings(memory_bytes)
        self._caches = Caches(cache_memory_bytes, settings.cache_disk_bytes, settings.cache_folders, awake.now_s)
        self._gpus = Gpus()
        self._notifier = Notifier()
        self._state_dir = state_dir
        self._ledger = Ledger(self._state_dir / logfile.FOLDER, about(settings, workers, memory_bytes))
        self._attachments = Attachments(self._rings, self._ledger)
        self._access = Access(os.getuid(), settings)
        bad = Quarantine(self._state_dir / quarantine.FOLDER)
        self._driver = Driver(self._coordinator)
        first_words = functools.partial(setup, self._coordinator, self._rings, self._caches)
        self._pool = WorkerPool(self._poll, self._driver, first_words, settings, workers, cache_dir)
        self._caches.tell = self._pool.broadcast
        self._watch = Watch(self._coordinator, self._pool, self._attachments, self._caches, self._gpus, self._ledger)
        self._reports = Reports(self._driver, bad, self._watch, cache_dir)
        self._sizer = PoolSizer(self._driver, self._pool, self._watch, settings.workers)
        self._peers = Peers(most_clients, os.getuid())
        self._clients = Clients(
            self._poll, self._driver, self._attachments, self._ledger, self._peers, runtime_dir.line_socket
        )
        self._questions = Questions(
            self, self._driver, self._clients, self._attachments, self._access, self._pool, self._rings, self._caches,
            bad, self._ledger,
        )  # fmt: skip
        self._driver.carry_out = Executor(
            self._coordinator, self._rings, self._caches, self._attachments, bad, self._access, self._pool,
            self._clients, self._questions,
        ).carry_out  # fmt: skip
        self._stops = 0
        self._stop_by_s = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._lifeline_fd = -1 if lifeline is None else os.pidfd_open(lifeline)

    # -- life ---------------------------------------------------------------------------------------

    def run(self, ready: Callable[[], None] = lambda: None, succeed: Callable[[], None] = lambda: None) -> bool:
        """Serves until SIGTERM, SIGINT, `prepserver stop` or a successor.

        Args:
            ready: Called when clients may attach.
            succeed: Called when the workers are up, if another daemon holds the directory. It must end that daemon and
                lock the directory.

        Returns:
            Whether everything has ended; False if a process could not be killed.

        Raises:
            ZygoteError, ConfigError: See `WorkerPool.start`.
            PluginsChanged: The code of plug-ins changed while the daemon ran.
            OSError: The sockets cannot be made.
        """
        self._watch_signals()
        try:
            self._pool.start(self._reports.task_done, self._lifeline_fd)
            if not self._dir.is_ours:
                self._await_workers()
            if not self.stops:
                if not self._dir.is_ours:
                    succeed()
                self._open(ready)
                self._loop()
        finally:
            clean = self._close()
        return clean

    def _open(self, ready: Callable[[], None]) -> None:
        self._clients.open(Listener(self._dir.attach_socket, self._door, self._passed), self._questions.ask)
        log.info(
            "ready in %s: %s, %d MiB for rings, up to %d connections, sandbox: %s",
            self._dir.path, counted(len(self._pool.seats), "worker"), self._rings.budget_bytes >> 20, self._peers.most,
            self._pool.sandbox["parts"],
        )  # fmt: skip
        if self._lifeline_fd >= 0:
            self._poll.watch(self._lifeline_fd, self._lifeline_ended)
        ready()
        self._notifier.send(READY="1", STATUS=f"{counted(len(self._pool.seats), 'worker')}, no jobs")

    def _await_workers(self) -> None:
        """Waits until this machine's workers are up, because jobs will wait for them when the running daemon has ended.

        It does not wait for remote workers, which may need the cores that the running daemon's actors have.

        Raises:
            ZygoteError: They do not come up.
        """
        until_s = awake.now_s() + START_TIMEOUT_S
        while self._pool.local_up < self._pool.size and not self.stops:
            now_s = awake.now_s()
            if now_s > until_s:
                raise ZygoteError(f"only {self._pool.local_up} workers were up after {START_TIMEOUT_S:.0f} s")
            self._pool.tick(now_s)
            self._poll.run_once(_TICK_S)

    def _loop(self) -> None:
        next_tick_s = 0.0
        next_mark_s = 0.0
        while not (self.stops and (not self._attachments or time.monotonic() >= self._stop_by_s)):
            now_s = awake.now_s()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._pool.tick(now_s)
                self._driver.happened(Tick())
                self._pool.listings.tick()
                self._rings.step()
                streams = self._coordinator.table.streams.values()
                self._caches.tick({stream.spec.listing for stream in streams})
                self._questions.tick()
                self._clients.tick(now_s)
                self._watch.tick()
                for worker in self._coordinator.workers.overdue(now_s, self._settings.sample_timeout_s):
                    self._pool.end_if_idle(worker)
            if now_s >= next_mark_s:
                next_mark_s = now_s + 1.0
                self._watch.mark(now_s)
                self._sizer.mark(now_s)
                self._sign_of_life()
            self._poll.run_once(0.0 if self._clients.read_questions() else max(0.0, next_tick_s - awake.now_s()))

    def _sign_of_life(self) -> None:
        if self._notifier.watchdog_s is not None:
            doing = (counted(self._pool.up, "worker"), counted(len(self._attachments), "job"))
            self._notifier.send(WATCHDOG="1", STATUS=f"{', '.join(doing)}, {self._watch.rates.rows_per_s:.0f} rows/s")

    def _watch_signals(self) -> None:
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        # The handlers do nothing. A byte in the socket wakes the loop, which acts between two callbacks.
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._poll.watch(self._wake_read.fileno(), self._signalled)

    def _signalled(self) -> None:
        for number in self._wake_read.recv(64):
            if number == signal.SIGHUP and self._reread is not None:
                self._reload(self._reread)
            elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self.stop(signal.Signals(number).name)

    def _reload(self, reread: Reread) -> None:
        self._notifier.send(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))
        try:
            reloaded = reload(self._settings, reread(self._rings.held_bytes + self._caches.memory_bytes))
            most_clients = clients_allowed(
                raise_limit(), (reloaded.settings.workers or auto_most_workers()) + reloaded.settings.remote_workers
            )
        except (ConfigError, DescriptorsShort) as e:
            log.error("reload: %s. Everything stays as it was", e)
        else:
            self._settings = reloaded.settings
            self._access.settings = reloaded.settings
            if "log_level" in reloaded.now:
                logging.getLogger().setLevel(reloaded.settings.log_level.upper())
            if "memory" in reloaded.now:
                half = (machine_free_bytes()[0] + self._rings.held_bytes - self._rings.absent_bytes) // 2
                self._rings.budget_bytes = reloaded.settings.memory_bytes or half
            self._sizer.fixed = reloaded.settings.workers
            self._peers.most = most_clients  # more workers leave fewer descriptors
            self._caches.folders = reloaded.settings.cache_folders
            self._caches.disk_bytes = reloaded.settings.cache_disk_bytes
            if reloaded.now or not reloaded.at_restart:
                log.info("reloaded: %s", ", ".join(reloaded.now) or "nothing has changed")
            if reloaded.at_restart:
                log.warning("reload: needs a restart to take effect: %s", ", ".join(reloaded.at_restart))
        self._notifier.send(READY="1")

    def _lifeline_ended(self) -> None:
        self._poll.forget(self._lifeline_fd)
        self.stop("the process that this daemon belongs to has ended")

    @property
    def stops(self) -> bool:
        """Whether it is about to end."""
        return self._stops > 0

    @property
    def supervisor(self) -> str:
        """Who starts and ends it, so that no successor may, and what to do instead; empty if nobody does."""
        if self._lifeline_fd >= 0:
            return "a process, and ends with it: no other daemon takes its place"
        if self._passed is not None or self._notifier.is_heard:
            return "a service manager, which restarts it: `systemctl restart prepserver.service`. Jobs continue, too"
        return ""

    @property
    def end_s(self) -> float:
        """Longest time until it has ended, after `stop`."""
        return max(0.0, self._stop_by_s - time.monotonic()) + KILL_S

    def stop(self, why: str, *, at_once: bool = False) -> None:
        """Lets jobs finish for `drain_s`, unless `at_once` or owned by a process, and ends; a second call: at once."""
        self._stops += 1
        drain_s = 0.0 if at_once or self._stops > 1 or self._lifeline_fd >= 0 else self._settings.drain_s
        self._stop_by_s = time.monotonic() + drain_s
        if self._stops > 1:
            log.info("stopping at once (%s)", why)
            return
        log.info("stopping (%s): %s may finish within %g s", why, counted(len(self._attachments), "job"), drain_s)
        # systemd's TimeoutStopSec may be shorter than drain_s, so ask for more.
        patience_us = int((self.end_s + 2) * 1e6)
        self._notifier.send(STOPPING="1", EXTEND_TIMEOUT_USEC=str(patience_us))
        self._clients.stop_listening()
        self._dir.remove_attach_socket()

    def _close(self) -> bool:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the interpreter would restore the defaults at its end
        # ORDER: workers first. Clients can still read ready rows, and workers would fill the room that each job leaves.
        clean = self._pool.close(KILL_S)
        self._clients.close()
        self._rings.close()
        self._caches.close()
        self._gpus.close()
        self._ledger.close()
        self._poll.close()
        if self._lifeline_fd >= 0:
            os.close(self._lifeline_fd)
        self._wake_read.close()
        self._wake_write.close()
        if clean:
            log.info("stopped")
        else:
            log.error("stopped, but a worker waits in the kernel and will end only when its storage answers")
        return clean

    def snapshot(self, since_ns: int | None = None) -> dict[str, Any]:
        """All that `prepserver status` shows, and for traces what happened after `since_ns`."""
        found = {
            "version": __version__, "pid": os.getpid(), "state": "stopping" if self.stops else "running",
            "runtime_dir": str(self._dir.path), "state_dir": str(self._state_dir),
            "uptime_s": round(time.monotonic() - self._started_s, 3), **snapshot(self._watch, self._rings),
        }  # fmt: skip
        if since_ns is not None:
            found["chunks"] = self._watch.chunks_since(since_ns)
            for job in found["jobs"]:
                attachment = self._attachments[job["id"]]
                job["told"] = [each for each in attachment.told if each.at_ns >= since_ns]
                job["heard"] = [each for each in attachment.heard if each.at_ns >= since_ns]
        return found

    def rows_per_s(self) -> float:
        """Rate of the busy pool; before any measurement, a guess for ordinary photos."""
        return self._watch.rates.busy_rows_per_s or 500.0 * len(self._pool.seats)


def _order_of(attach: Attach, samples: int) -> Order:
    whole = batch_rows(attach.batching, attach.batch_size)
    return make_order(attach.shuffle, samples, attach.seed, shard_of(attach), whole, *arrangement_of(attach.source))
