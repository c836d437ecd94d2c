"""Starts the zygote for the daemon, asks it for children, and reports how they end.

Only `wait_ready` and `close` wait, with deadlines; results of other requests arrive later as events. Nothing here knows
about tasks: the caller decides what to send to a child.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prepserver
from prepserver.memory.passing import close_all
from prepserver.protocol import work
from prepserver.protocol.schema import ProtocolError
from prepserver.telemetry.page import StatsPage, create_page
from prepserver.worker.channel import CannotPass, Channel, ChannelClosed, pair
from prepserver.worker.child import Child, describe_status
from prepserver.worker.lifeline import ENDS

_TICKETS = itertools.count(1)  # for all zygotes and bridges, because the pool knows a worker by its ticket alone

START_TIMEOUT_S = 60.0
"""The zygote comes up in 1 s from a warm disk and in 3 s from a cold one; a busy network file system takes longer."""

_NOT_UP = work.Ready("unknown", "the zygote is not up", "unknown")

ONE_THREAD = {
    # One compute thread per worker: with more, two workers on two cores were 29 times slower.
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "MALLOC_ARENA_MAX": "2",
    # Arrow's own allocator takes 1 GiB of `worker_memory` in advance, and decodes a new row group at half the speed:
    # it has the kernel clear ten times the memory that stays in use.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "TOKIO_WORKER_THREADS": "1",  # of reads from object stores, for which one is plenty
    "TOKENIZERS_PARALLELISM": "false",
    # No import can make a child create a CUDA context.
    "CUDA_VISIBLE_DEVICES": "",
}
"""Variables for every process that makes rows, because threads of its own would take the other workers' cores."""


class ZygoteError(RuntimeError):
    """The zygote cannot do what was asked; the text says why. Its own messages are on stderr."""


class ZygoteAbsent(ZygoteError):
    """The zygote has ended; an event reports it now or soon."""


@dataclass(frozen=True, slots=True)
class ZygoteReady:
    """The zygote is up and forks the children that were asked for."""


@dataclass(frozen=True, slots=True)
class ChildSpawned:
    """`child` runs: its pid and pidfd are set."""

    child: Child


@dataclass(frozen=True, slots=True)
class ChildExited:
    """`child` has ended with `status`, or could not be started (`status` is None); `reason` is for the log."""

    child: Child
    status: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class ZygoteGone:
    """The zygote has ended and takes its children with it; `Zygote.start` makes a new one."""

    reason: str  # for the log
    # The children whose end was not reported; the caller closes them. One with a pidfd has ended when the pidfd is
    # readable (storage that hangs can delay this); one without never ran, or has ended.
    children: tuple[Child, ...]


Event = ZygoteReady | ChildSpawned | ChildExited | ZygoteGone


class Zygote:
    """Starts processes and reports their ends. One owner thread: the main thread.

    `prepare` is the first message that it gets, and `name` its name in logs and errors. `program` is its module:
    `prepserver.worker.zygote`, or another one that speaks the same protocol.
    """

    def __init__(
        self, prepare: work.Prepare | None = None, name: str = "the zygote", program: str = "prepserver.worker.zygote"
    ) -> None:
        self.name = name
        self._prepare = prepare or work.Prepare()
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._started_s = 0.0
        self._killed = False
        self._by_ticket: dict[int, Child] = {}
        self._early: list[Event] = []
        self.ready = False  # whether it is up
        self.about = _NOT_UP  # its own message about what works there

    @property
    def pid(self) -> int | None:
        """Pid of the zygote that was started last; None before the first."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the process, or raises `ZygoteError`; `ZygoteReady` follows. Children may be asked for at once."""
        if threading.current_thread() is not threading.main_thread():
            # The zygote is killed when the thread that started it ends: see `lifeline`.
            raise ZygoteError("the zygote must be started from the main thread")
        try:
            ours, theirs = pair()
        except OSError as e:
            raise ZygoteError(f"no line to {self.name}: {e.strerror}") from e
        command = [
            *(sys.executable, "-P", "-m", self._program),
            *("--fd", str(theirs.fileno()), "--parent", str(os.getpid())),
        ]
        with theirs:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=_environment()
                )
            except OSError as e:
                ours.close()
                raise ZygoteError(f"cannot start {sys.executable}: {e}") from e
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._channel = Channel(ours, work.FROM_ZYGOTE)
        self.ready, self._killed, self.about = False, False, _NOT_UP
        self._started_s = time.monotonic()
        try:
            self._channel.send(self._prepare)
        except (CannotPass, ProtocolError) as e:
            self.close()
            raise ZygoteError(f"cannot tell {self.name} what to load: {e}") from e
        except ChannelClosed:
            pass  # `receive` reports it

    def fileno(self) -> int:
        """Descriptor of the line to the zygote, for poll; -1 if there is none."""
        return self._channel.fileno() if self._channel else -1

    @property
    def blocked(self) -> bool:
        """True while requests wait for room: poll for writing and call `flush`."""
        return self._channel is not None and self._channel.blocked

    @property
    def overdue(self) -> bool:
        """True if it was not up within `START_TIMEOUT_S`: close it."""
        return not self.ready and time.monotonic() - self._started_s > START_TIMEOUT_S

    def flush(self) -> None:
        """Sends requests that wait for room."""
        if self._channel:
            with contextlib.suppress(ChannelClosed):  # `receive` reports it
                self._channel.flush()

    def spawn(self, kind: work.Kind, number: int) -> Child:
        """Asks for a child, which runs when `ChildSpawned` arrives; `number` is its name in logs and for the caller.

        Messages to it may be sent before it runs.

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
                except CannotPass as e:
                    raise ZygoteError(f"cannot ask {self.name} for a new process: {e}") from e
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
                self.ready, self.about = True, message
                return ZygoteReady()
            case work.Spawned(ticket, pid, host) if (child := self._by_ticket.get(ticket)) and len(fds) == 1:
                child.pid, child.pidfd, child.host = pid, fds[0], host
                return ChildSpawned(child)
            case work.Exited(ticket, status, reason) if child := self._by_ticket.pop(ticket, None):
                return ChildExited(child, status, reason if status is None else describe_status(status))
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

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S, lifeline_fd: int = -1) -> None:
        """Waits up to `timeout_s` until the zygote is up. `receive` returns other events that arrive meanwhile.

        `lifeline_fd` is a pidfd of the process that the caller must not outlive; -1 if there is none.

        Raises:
            ZygoteError: It ended, or was not up in time, or the process of `lifeline_fd` has ended.
        """
        deadline_s = time.monotonic() + timeout_s
        poll = select.poll()
        for fd in (self.fileno(), *([lifeline_fd] if lifeline_fd >= 0 else [])):
            poll.register(fd, select.POLLIN)
        while not self.ready:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not (heard := poll.poll(left_s * 1000)):
                raise ZygoteError(f"{self.name} was not up after {timeout_s:.0f} s (it imports torch and plug-ins)")
            if lifeline_fd in dict(heard):
                raise ZygoteError("the process that this daemon belongs to has ended")
            self._early = self.receive()
            for event in self._early:
                if isinstance(event, ZygoteGone):
                    raise ZygoteError(event.reason)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Kills the zygote and all children within `timeout_s`, and closes everything; returns whether all have ended.

        One that waits for dead storage ends only when the kernel lets it. No process needs an orderly end: rows are in
        shared memory, and the daemon has all state. A second call does nothing.
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
            # A child that never ran has no pidfd; it ended with the zygote.
            clean &= child.ended_by(deadline_s)
            child.close()
        self._by_ticket.clear()
        return clean

    def kill(self) -> bool:
        """Kills it, with all its children; `ZygoteGone` follows. Returns False if it was killed before."""
        if self._process is None or self._killed:
            return False
        self._process.kill()
        self._killed = True
        return True

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


def _environment() -> dict[str, str]:
    """This process's environment, changed for children: one thread for computing, no GPU, and the same package."""
    env = {**os.environ, **ONE_THREAD}
    root = Path(prepserver.__file__).resolve().parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        # In a checkout: the option -P keeps the current directory, and so this package, out of the child's path.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(root))))
    return env
