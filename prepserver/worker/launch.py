"""Starts the zygote for the daemon, asks it for children, and reports how they end.

Only `wait_ready` and `close` wait, and they have deadlines: results of other requests arrive later as events. Nothing
here knows about tasks: the caller decides what to send to a child.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from prepserver.protocol import work
from prepserver.protocol.schema import ProtocolError
from prepserver.telemetry.page import StatsPage, create_page
from prepserver.worker.channel import Channel, ChannelClosed, close_all, pair
from prepserver.worker.child import Child, describe_status
from prepserver.worker.environment import environment

_TICKETS = itertools.count(1)  # of all such processes together: the pool knows a worker by its ticket alone

START_TIMEOUT_S = 60.0
"""The zygote comes up in 1 s from a warm disk and in 3 s from a cold one; a busy network file system takes longer."""


class ZygoteError(RuntimeError):
    """The zygote cannot do what was asked; the text says why. Its own messages are on stderr."""


class ZygoteAbsent(ZygoteError):
    """The zygote has ended, as an event reports or will report."""


@dataclass(frozen=True, slots=True)
class ZygoteReady:
    """The zygote is up and forks the children that were asked for."""


@dataclass(frozen=True, slots=True)
class ChildSpawned:
    """`child` runs: its pid and pidfd are set."""

    child: Child


@dataclass(frozen=True, slots=True)
class ChildExited:
    """`child` has ended, or (`status` None) could not be started for `reason`.

    Attributes:
        status: Exit status, or the negative number of the signal that ended it.
        reason: For the log.
    """

    child: Child
    status: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class ZygoteGone:
    """The zygote has ended and takes its children with it; `Zygote.start` makes a new one.

    Attributes:
        reason: For the log.
        children: The children whose end was not reported; the caller closes them. One with a pidfd has ended when
            that is readable (storage that hangs can delay it); one without never ran, or has ended.
    """

    reason: str
    children: tuple[Child, ...]


Event = ZygoteReady | ChildSpawned | ChildExited | ZygoteGone


class Zygote:
    """Starts processes and reports their ends. One owner thread: the main thread.

    A subclass names another program that speaks the zygote's protocol, such as `prepserver.engine.launch.Bridge`.

    Args:
        nice: Added to the children's niceness, so that training processes come first. 0 for none.
        log_level: Of the children, which log to this process's stderr.
        sandbox: Whether children confine themselves: ``auto``, ``on`` or ``off``. The caller of ``on`` has to check
            `unconfined`.
        plugins: Names of what is loaded of the daemon's owner's code.
        plugin_read: Folders that children may read for it.
        url_roots: URLs below which children may read; without any, they have no network.
        read_deadline_s: Longest time for one such read.
        log_format: Of what the children log; see `prepserver.telemetry.logs`.
        worker_bytes: What a worker may allocate for itself; 0 for no limit.

    Attributes:
        ready: Whether it has come up.
        kernels: What makes rows, ``native`` or ``pure``, and why.
        sandbox: The parts of the sandbox that its children have, in words.
        unconfined: Missing parts and the reason; empty if none is missing.
        plugins: What is loaded; see `work.Ready`.
        broken: Why not all of it is.
    """

    name: ClassVar[str] = "the zygote"
    program: ClassVar[str] = "prepserver.worker.zygote"

    def __init__(
        self,
        nice: int = 5,
        log_level: str = "INFO",
        sandbox: str = "auto",
        plugins: Sequence[str] = (),
        plugin_read: Sequence[str] = (),
        url_roots: Sequence[str] = (),
        read_deadline_s: float = 15.0,
        log_format: str = "text",
        worker_bytes: int = 0,
    ) -> None:
        self._nice = nice
        self._mode = sandbox
        self._more = [
            *(part for name in plugins for part in ("--plugin", name)),
            *(part for folder in plugin_read for part in ("--read", folder)),
            *(part for url in url_roots for part in ("--url", url)),
            *("--read-deadline", str(read_deadline_s), "--log-format", log_format),
            *("--worker-bytes", str(worker_bytes)),
        ]
        self._log_level = log_level
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._started_s = 0.0
        self._by_ticket: dict[int, Child] = {}
        self._early: list[Event] = []
        self.ready = False
        self.kernels = ("unknown", "the zygote is not up")
        self.sandbox = "unknown"
        self.unconfined = ""
        self.plugins: work.Plugins = []
        self.broken = ""

    @property
    def pid(self) -> int | None:
        """Pid of the zygote that was started last; None before the first."""
        return self._process.pid if self._process else None

    @property
    def children(self) -> list[Child]:
        """The children that were asked for and are not known to have ended."""
        return list(self._by_ticket.values())

    def start(self) -> None:
        """Starts the process; `ZygoteReady` follows. Children may be asked for at once.

        Raises:
            ZygoteError: It cannot be started.
        """
        if threading.current_thread() is not threading.main_thread():
            # The zygote is killed when the thread that started it ends: see `lifeline`.
            raise ZygoteError("the zygote must be started from the main thread")
        try:
            ours, theirs = pair()
        except OSError as e:
            raise ZygoteError(f"no line to {self.name}: {e.strerror}") from e
        command = [
            *(sys.executable, "-P", "-m", self.program),
            *("--fd", str(theirs.fileno()), "--parent", str(os.getpid())),
            *("--nice", str(self._nice), "--log-level", self._log_level, "--sandbox", self._mode),
            *self._more,
        ]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment()
                )
            except OSError as e:
                ours.close()
                raise ZygoteError(f"cannot start {sys.executable}: {e}") from e
        self._channel = Channel(ours, work.FROM_ZYGOTE)
        self.ready = False
        self._started_s = time.monotonic()

    def fileno(self) -> int:
        """Descriptor of the line to the zygote, for poll; -1 if there is none."""
        return self._channel.fileno() if self._channel else -1

    @property
    def blocked(self) -> bool:
        """Whether requests wait for room: poll for writing and call `flush`."""
        return self._channel is not None and self._channel.blocked

    @property
    def overdue(self) -> bool:
        """Whether it has not come up within `START_TIMEOUT_S`: close it."""
        return not self.ready and time.monotonic() - self._started_s > START_TIMEOUT_S

    def flush(self) -> None:
        """Sends requests that wait for room."""
        if self._channel:
            with contextlib.suppress(ChannelClosed):  # `receive` reports it
                self._channel.flush()

    def spawn(self, kind: work.Kind, number: int) -> Child:
        """Asks for a child, which runs when `ChildSpawned` arrives. Messages to it may be sent before.

        Args:
            kind: ``worker`` or ``indexer``.
            number: Its name in logs and for the caller.

        Raises:
            ZygoteAbsent: There is no zygote.
            ZygoteError: No memory or no descriptor is left.
        """
        if self._channel is None:
            raise ZygoteAbsent(f"{self.name} is not running")
        ticket = next(_TICKETS)
        with contextlib.ExitStack() as on_error, contextlib.ExitStack() as at_end:
            try:
                page_fd = create_page(f"prepserver-stats-{number}")
                at_end.callback(os.close, page_fd)
                ours, theirs = pair()
            except OSError as e:
                raise ZygoteError(f"cannot make a page and a line for a new process: {e}") from e
            on_error.callback(ours.close)
            with theirs:
                try:
                    self._channel.send(work.Spawn(ticket, number, kind), [theirs.fileno(), page_fd])
                except ChannelClosed as e:
                    raise ZygoteAbsent(f"{self.name} is gone: {e}") from e
            child = Child(ticket, number, kind, ours, StatsPage(page_fd, writable=False))
            on_error.pop_all()
        self._by_ticket[child.ticket] = child
        return child

    def receive(self) -> list[Event]:
        """The events since the last call; never waits.

        The caller closes a child that has ended: until then its last messages, its page and its pidfd stay.
        """
        events, self._early = self._early, []
        if self._channel is None:
            return events
        try:
            for message, fds in self._channel.receive():
                events.append(self._take(message, fds))
        except (ChannelClosed, ProtocolError) as e:
            events.append(self._lose(str(e)))
        return events

    def _take(self, message: Any, fds: list[int]) -> Event:
        match message:
            case work.Ready():
                self.ready = True
                self.kernels = (message.kernels, message.why)
                self.sandbox, self.unconfined = message.sandbox, message.unconfined
                self.plugins, self.broken = message.plugins, message.broken
                return ZygoteReady()
            case work.Spawned(ticket, pid, host) if (child := self._by_ticket.get(ticket)) and len(fds) == 1:
                child.pid, child.pidfd, child.host = pid, fds[0], host
                return ChildSpawned(child)
            case work.SpawnFailed(ticket, reason) if child := self._by_ticket.pop(ticket, None):
                return ChildExited(child, None, reason)
            case work.Exited(ticket, _, status) if child := self._by_ticket.pop(ticket, None):
                return ChildExited(child, status, describe_status(status))
            case _:
                close_all(fds)
                raise ProtocolError(f"unexpected {message}")

    def _lose(self, what: str) -> ZygoteGone:
        assert self._channel is not None
        assert self._process is not None
        self._channel.close()
        self._channel = None
        self.ready = False
        try:
            # Its line closes a moment before the process ends.
            reason = f"{self.name} ended: {describe_status(self._process.wait(1.0))}"
        except subprocess.TimeoutExpired:
            reason = f"{self.name} was killed: {what}"
        self._kill(1.0)
        children = tuple(self._by_ticket.values())
        self._by_ticket.clear()
        return ZygoteGone(reason, children)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the zygote is up. `receive` returns other events that arrive meanwhile.

        Raises:
            ZygoteError: It ended, or was not up in time.
        """
        deadline_s = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while not self.ready:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                raise ZygoteError(f"the zygote was not up after {timeout_s:.0f} s (it imports torch and plug-ins)")
            self._early = self.receive()
            for event in self._early:
                if isinstance(event, ZygoteGone):
                    raise ZygoteError(event.reason)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Kills the zygote and all children, and closes everything. A second call does nothing.

        No process needs an orderly end: rows are in shared memory, and the daemon has all state.

        Args:
            timeout_s: For everything together.

        Returns:
            Whether all processes have ended. One that waits for dead storage ends only when the kernel lets it.
        """
        deadline_s = time.monotonic() + timeout_s
        if self._channel:
            self._channel.close()
            self._channel = None
        self.ready = False
        for child in self._by_ticket.values():
            child.kill()
        clean = self._kill(timeout_s)
        for child in self._by_ticket.values():
            # A child that never ran has no pidfd; it went with the zygote.
            clean &= child.ended_by(deadline_s)
            child.close()
        self._by_ticket.clear()
        return clean

    def kill(self) -> None:
        """Kills it, with all its children; `ZygoteGone` follows."""
        if self._process is not None:
            self._process.kill()

    def _kill(self, timeout_s: float) -> bool:
        """Kills the zygote; returns whether it has ended and was reaped."""
        if self._process is None:
            return True
        self._process.kill()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True
