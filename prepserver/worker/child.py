"""A child process as the daemon holds it: its line, its statistics page and its pidfd."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

from prepserver.memory.passing import close_all
from prepserver.protocol import work
from prepserver.telemetry.page import StatsPage
from prepserver.worker.channel import Channel


class Child(Channel):
    """A worker or an indexer, from the moment it was asked for, and the line to it.

    Messages may be sent before the process runs.
    """

    def __init__(self, ticket: int, number: int, kind: work.Kind, sock: socket.socket, page: StatsPage) -> None:
        super().__init__(sock, work.FROM_WORKER if kind == "worker" else work.FROM_INDEXER)
        self.ticket: Final = ticket  # names this process; no other process ever gets it
        self.number: Final = number  # the caller's; the process that replaces this one gets it too
        self.kind: Final = kind  # ``worker`` or ``indexer``
        self.page: Final = page  # its statistics, readable also after its death
        self.pid: int | None = None  # None until it runs
        # Readable when the process has ended; None until it runs. This object closes it. For a remote worker it is a
        # pipe, whose other end the bridge closes.
        self.pidfd: int | None = None
        self.host = ""  # the machine of a remote worker, which a bridge talks to; empty for a process of this machine

    def messages(self, most: int | None = None) -> Iterator[Any]:
        """Yields the messages that have arrived (`Channel.receive`), without descriptors: children send none."""
        for message, fds in self.receive(most):
            close_all(fds)
            yield message

    def kill(self) -> None:
        """Sends SIGKILL to this very process, if it still runs. A remote worker's bridge gets an end of file."""
        if self.host:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
        elif self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def ended_by(self, deadline_s: float) -> bool:
        """Waits until `deadline_s` (monotonic) for its end; returns whether it has ended (without a pidfd, it has)."""
        if self.pidfd is None:
            return True
        poll = select.poll()  # not select.select: a daemon may have more than its 1024 descriptors
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000))

    def close(self) -> None:
        """Hangs up, which ends an idle child, and closes the pidfd. A second call does nothing."""
        super().close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def describe_status(status: int) -> str:
    """The exit status of an `Exited` message in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
