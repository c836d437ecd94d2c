"""The daemon's hold on its processes: starts the zygote, asks it for children, hears of their ends.

Nothing here waits, but for `wait_ready` and `close`, which have deadlines: a request is sent, and what came
of it arrives later as an event. Knows nothing of tasks: what goes over a child's line is the caller's.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import prepserver
from prepserver.protocol import work
from prepserver.protocol.schema import ProtocolError
from prepserver.telemetry.page import StatsPage, create_page
from prepserver.worker.channel import Channel, ChannelClosed, close_all, pair

START_TIMEOUT_S = 60.0
"""It comes up in 1 s from a warm disk, 3 s from a cold one; a busy network file system takes its time."""

_ONE_THREAD = {
    # One compute thread per worker: with more, two workers on two cores were 29 times slower.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    # No child ever makes a CUDA context, whatever it imports.
    "CUDA_VISIBLE_DEVICES": "",
}


class ZygoteError(RuntimeError):
    """The zygote did not come up; the text says how it ended. Its own messages are on stderr."""


class Child:
    """A worker or an indexer, from the moment it was asked for.

    Attributes:
        number: The caller's; given again to the process that replaces this one.
        kind: ``worker`` or ``indexer``.
        pid: None until it runs.
        pidfd: Readable when the process has ended, None until it runs. Belongs to this object.
        page: What it is doing, readable also after its death.
        sock: The daemon's end of its line, non-blocking; for poll.
    """

    def __init__(self, ticket: int, number: int, kind: work.Kind, sock: socket.socket, page: StatsPage) -> None:
        self.ticket: Final = ticket
        self.number: Final = number
        self.kind: Final = kind
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.page: Final = page
        self._channel = Channel(sock, work.FROM_WORKER if kind == "worker" else work.FROM_INDEXER)
        self.sock: Final = sock

    def fileno(self) -> int:
        """Of its line, for poll; -1 after `close`."""
        return self.sock.fileno()

    @property
    def blocked(self) -> bool:
        """Whether messages wait for it to read: poll for writing and call `flush`."""
        return self._channel.blocked

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Sends now, or as soon as it reads; never waits. May be called before the process runs.

        Raises:
            ChannelClosed: It is gone.
        """
        self._channel.send(message, fds)

    def flush(self) -> None:
        """Sends what had to wait, as far as there is room.

        Raises:
            ChannelClosed: It is gone.
        """
        self._channel.flush()

    def receive(self, most: int | None = None) -> Iterator[Any]:
        """Yields the messages that have arrived, `most` of them.

        Raises:
            ChannelClosed: It is gone; what it had sent before was yielded.
            ProtocolError: It says what it may not: kill it.
        """
        for message, fds in self._channel.receive(most):
            close_all(fds)  # none is ever due in this direction
            yield message

    def kill(self) -> None:
        """SIGKILL, to this very process and no other. Does nothing if it is not there."""
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def ended_by(self, deadline_s: float) -> bool:
        """Waits until it has ended, or `deadline_s` (monotonic) has passed; whether it has. One without pidfd has."""
        if self.pidfd is None:
            return True
        poll = select.poll()  # not select.select: a daemon may have more than its 1024 descriptors
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000))

    def close(self) -> None:
        """Hangs up, which an idle child takes as the order to end, and closes the pidfd. Again does nothing."""
        self._channel.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


@dataclass(frozen=True, slots=True)
class ZygoteReady:
    """Children can be forked from now on; those asked for before are on their way."""


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
        children: Those whose end was not told, now the caller's to close. One with a pidfd has ended when that
            says so (storage that hangs can hold it); one without never ran, or has ended.
    """

    reason: str
    children: tuple[Child, ...]


Event = ZygoteReady | ChildSpawned | ChildExited | ZygoteGone


class Zygote:
    """Starts processes and hears of their ends. One owner thread: the main thread.

    Args:
        nice: Added to the children's niceness, so that training processes come first. 0 for none.
        log_level: Of the children, which log to this process's stderr.
        sandbox: Whether children confine themselves: ``auto``, ``on`` or ``off``. ``on`` is not enforced here: see
            `unconfined`.
        plugins: Names of what is loaded of the daemon's owner's code.
        plugin_read: Folders that children may read for it.

    Attributes:
        ready: Whether it has come up.
        children: Those asked for and not known to have ended.
        kernels: Which path makes rows, ``native`` or ``pure``, and why.
        sandbox: The parts of the sandbox that its children have, in words.
        unconfined: Parts that are missing, and why; empty if none is.
        plugins: What is loaded; see `work.Ready`.
        broken: Why not all of it is.
    """

    def __init__(
        self,
        nice: int = 5,
        log_level: str = "INFO",
        sandbox: str = "auto",
        plugins: Sequence[str] = (),
        plugin_read: Sequence[str] = (),
    ) -> None:
        self._nice = nice
        self._mode = sandbox
        self._more = [
            *(part for name in plugins for part in ("--plugin", name)),
            *(part for folder in plugin_read for part in ("--read", folder)),
        ]
        self._log_level = log_level
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._tickets = 0
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
        """Of the zygote that was started last; None before the first."""
        return self._process.pid if self._process else None

    @property
    def children(self) -> list[Child]:
        """Those asked for and not known to have ended."""
        return list(self._by_ticket.values())

    def start(self) -> None:
        """Starts the process; that it is up arrives as an event. Children may be asked for at once.

        Raises:
            ZygoteError: It cannot be started at all.
        """
        if threading.current_thread() is not threading.main_thread():
            # see `lifeline`: the zygote is killed when the thread that started it ends
            raise ZygoteError("the zygote must be started from the main thread")
        ours, theirs = pair()
        command = [
            *(sys.executable, "-P", "-m", "prepserver.worker.zygote"),
            *("--fd", str(theirs.fileno()), "--parent", str(os.getpid())),
            *("--nice", str(self._nice), "--log-level", self._log_level),
            *("--sandbox", self._mode),
            *self._more,
        ]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=_environment()
                )
            except OSError as e:
                ours.close()
                raise ZygoteError(f"cannot start {sys.executable}: {e}") from e
        self._channel = Channel(ours, work.FROM_ZYGOTE)
        self.ready = False
        self._started_s = time.monotonic()

    def fileno(self) -> int:
        """Of the line to the zygote, for poll; -1 when there is none."""
        return self._channel.fileno() if self._channel else -1

    @property
    def blocked(self) -> bool:
        """Whether requests wait for the zygote to read: poll for writing and call `flush`."""
        return self._channel is not None and self._channel.blocked

    @property
    def overdue(self) -> bool:
        """Whether it should have come up by now (`START_TIMEOUT_S`): close it and give up."""
        return not self.ready and time.monotonic() - self._started_s > START_TIMEOUT_S

    def flush(self) -> None:
        """Sends requests that had to wait."""
        if self._channel:
            with contextlib.suppress(ChannelClosed):  # `receive` says so
                self._channel.flush()

    def spawn(self, kind: work.Kind, number: int) -> Child:
        """Asks for a child; it can be talked to at once, and runs when `ChildSpawned` says so.

        Args:
            kind: ``worker`` or ``indexer``.
            number: Its name in logs and for the caller.

        Raises:
            ZygoteError: There is no zygote (its end is an event of `receive`).
        """
        if self._channel is None:
            raise ZygoteError("the zygote is not running")
        self._tickets += 1
        try:
            page_fd = create_page(f"prepserver-stats-{number}")
        except OSError as e:  # out of descriptors, say: what is there goes on
            raise ZygoteError(f"cannot make a page for a new process: {e}") from e
        try:
            ours, theirs = pair()
        except OSError as e:
            os.close(page_fd)
            raise ZygoteError(f"cannot make a line to a new process: {e}") from e
        try:
            with theirs:
                self._channel.send(work.Spawn(self._tickets, number, kind), [theirs.fileno(), page_fd])
            child = Child(self._tickets, number, kind, ours, StatsPage(page_fd, writable=False))
        except ChannelClosed as e:
            ours.close()
            raise ZygoteError(f"the zygote is gone: {e}") from e
        finally:
            os.close(page_fd)
        self._by_ticket[child.ticket] = child
        return child

    def receive(self) -> list[Event]:
        """What has happened since the last call; never waits.

        An ended child is not closed: its last messages, its page and its pidfd stay until the caller does it.
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
            case work.Spawned(ticket, pid) if (child := self._by_ticket.get(ticket)) and len(fds) == 1:
                child.pid, child.pidfd = pid, fds[0]
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
            # its line closes a moment before it ends
            reason = f"the zygote ended: {describe_status(self._process.wait(1.0))}"
        except subprocess.TimeoutExpired:
            reason = f"the zygote was killed: {what}"
        self._kill(1.0)
        children = tuple(self._by_ticket.values())
        self._by_ticket.clear()
        return ZygoteGone(reason, children)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the zygote is up. Other events that arrive meanwhile are what `receive` returns next.

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
        """Ends the zygote and all children, and closes everything. Again does nothing.

        Neither holds anything that is worth an orderly end: rows lie in shared memory, states in the daemon.

        Args:
            timeout_s: For all of it together.

        Returns:
            False if a process was still there: one that waits for dead storage ends when the kernel lets it.
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
            # One that was asked for and never heard of has no pidfd; it went with the zygote.
            clean &= child.ended_by(deadline_s)
            child.close()
        self._by_ticket.clear()
        return clean

    def _kill(self, timeout_s: float) -> bool:
        """Whether the zygote is ended and reaped."""
        if self._process is None:
            return True
        self._process.kill()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def describe_status(status: int) -> str:
    """An exit status as `Exited` has it, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _environment() -> dict[str, str]:
    env = {**os.environ, **_ONE_THREAD}
    root = Path(prepserver.__file__).resolve().parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        # run from a checkout: -P keeps the current directory out of the child's path, and so this out too
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(root))))
    return env
