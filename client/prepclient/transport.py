"""The client's ends of the lease (`attach.sock`) and the line (ZeroMQ): moves messages, and notices the daemon's end.

It is long because either may end first, while the daemon's last words are still on the other one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from prepclient import errors
from prepclient.descriptors import opening, too_few_descriptors
from prepserver.memory.passing import close_all, receive_with_fds
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.messages import (
    ATTACH_SOCKET,
    FROM_DAEMON,
    FROM_LEASE,
    AskStatus,
    Bye,
    Descriptor,
    Refused,
    Scanning,
    Status,
)
from prepserver.protocol.places import trusted_dirs, why_refused
from prepserver.protocol.schema import ProtocolError
from prepserver.protocol.versions import hello, too_old

_LINE = "ipc://line"  # libzmq requires a name, even for a socket that exists
_DESCRIPTOR_TIMEOUT_S = 10.0  # ample: the daemon sends a descriptor before the message that names it
_QUEUE_FULL_S = 0.01  # between two tries to connect: the daemon empties its queue many times as often
_LAST_WORDS_MS = 100  # in this time ZeroMQ delivers what the daemon sent before it closed the lease
# Plain numbers, because comparing enum members takes a microsecond.
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}

_REFUSALS: dict[str, type[errors.PrepClientError]] = {
    "busy": errors.ServerBusy,
    "internal": errors.ServerGone,  # the daemon may admit the job again
    "memory": errors.MemoryRefused,
    "permission": errors.NoPermission,
    "protocol": errors.VersionMismatch,
    "source": errors.SourceUnavailable,
    "stopping": errors.ServerGone,
}


class Connection:
    """A lease and its line; raises `PrepClientError` if there is no connection, or no line within `timeout_s`."""

    def __init__(self, runtime_dir: Path, timeout_s: float) -> None:
        self.runtime_dir = runtime_dir
        self._given: dict[int, int] = {}
        self._dealer: zmq.Socket[bytes] | None = None
        deadline_s = time.monotonic() + timeout_s
        self._lease = connect(runtime_dir, timeout_s)
        try:
            with contextlib.suppress(
                BrokenPipeError, ConnectionResetError
            ):  # the daemon has hung up, and may have said why
                self._lease.send(hello())
            self._open_line(self.take(0, max(0.0, deadline_s - time.monotonic())))
            self._poller = zmq.Poller()
            self._poller.register(self._lease.fileno(), zmq.POLLIN)
            self._poller.register(self._dealer, zmq.POLLIN)
        except BaseException:
            self.close()
            raise

    def _open_line(self, listener: int) -> None:
        """Opens the line: accepts the daemon's connection, which waits on the socket `listener`."""
        try:
            with opening(1):  # without a free descriptor, libzmq aborts the process at accept
                os.close(os.dup(listener))
            dealer = self._dealer = _context().socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            dealer.setsockopt(zmq.USE_FD, listener)
            dealer.bind(_LINE)  # libzmq closes `listener` from here on
        except errors.TooFewDescriptors:
            os.close(listener)
            raise
        except (OSError, zmq.ZMQError) as e:
            os.close(listener)
            if e.errno == errno.EMFILE:
                raise too_few_descriptors(2) from e
            raise errors.PrepClientError(f"no line to the daemon in {self.runtime_dir}: {e.strerror}") from e

    def send(self, message: Any, timeout_s: float = 0.0) -> bool:
        """Sends `message`; False if it cannot be queued within `timeout_s`, because the daemon does not read."""
        assert self._dealer is not None
        if not self._await(_POLLOUT, timeout_s):
            return False
        self._dealer.send(encode(message), zmq.DONTWAIT)
        return True

    def receive(self, timeout_s: float) -> Any | None:
        """The daemon's next message, or None after `timeout_s`; raises `PrepClientError` if it ended or refused."""
        assert self._dealer is not None
        if not self._await(_POLLIN, timeout_s):
            return None
        try:
            message = decode(self._dealer.recv(zmq.DONTWAIT), FROM_DAEMON)
        except ProtocolError as e:
            raise errors.ProtocolViolation(f"from the daemon: {e}") from e
        if isinstance(message, Refused):
            raise refusal(message)
        return message

    def _await(self, event: int, timeout_s: float) -> bool:
        """Waits until the line is writable or readable; False if it is not within `timeout_s`. Raises as `receive`."""
        assert self._dealer is not None
        deadline_s = time.monotonic() + timeout_s
        while not (can := self._can(event)) and (left_s := deadline_s - time.monotonic()) > 0:
            self._poller.modify(self._dealer, event)
            if any(end != self._dealer for end, _ in self._poller.poll(max(1, round(1000 * left_s)))):
                try:
                    self._read_lease(0.0)
                except BlockingIOError:
                    pass
                except errors.ServerGone:
                    # Earlier messages come first, and may still be in ZeroMQ's thread; the next call sees the end.
                    if not self._dealer.poll(_LAST_WORDS_MS, event):
                        raise
        return can

    def _can(self, event: int) -> bool:
        assert self._dealer is not None
        # An exception from recv or send would cost several times as much.
        return bool(int(self._dealer.getsockopt(zmq.EVENTS)) & event)

    def take(self, number: int, timeout_s: float = _DESCRIPTOR_TIMEOUT_S) -> int:
        """The descriptor with this number, now the caller's; raises `PrepClientError` if it does not arrive."""
        deadline_s = time.monotonic() + timeout_s
        while number not in self._given:
            try:
                self._read_lease(max(0.001, deadline_s - time.monotonic()))
            except (TimeoutError, BlockingIOError) as e:
                raise errors.BatchTimeout(
                    f"the daemon in {self.runtime_dir} did not send descriptor {number} within "
                    f"{round(timeout_s, 2):g} s: see its log, and `prepserver status`"
                ) from e
        return self._given.pop(number)

    def _read_lease(self, timeout_s: float) -> None:
        self._lease.settimeout(timeout_s)
        try:
            data, fds, flags = receive_with_fds(self._lease)
        except (TimeoutError, BlockingIOError):
            raise
        except OSError as e:
            raise errors.ServerGone(f"the daemon in {self.runtime_dir} ended: {e.strerror}") from e
        try:
            if flags & socket.MSG_CTRUNC:  # the kernel dropped a descriptor, because none was free
                raise too_few_descriptors(1)
            if not data:
                raise errors.ServerGone(
                    f"the prepserver daemon in {self.runtime_dir} ended, was replaced or killed. Its log says why. "
                    "Start it again (`prepserver start`, or `systemctl start prepserver`): the job goes on, or resumes "
                    "from its `state_dict()`"
                ) from ConnectionResetError()
            message = decode(data, FROM_LEASE)
            if isinstance(message, Refused):
                raise errors.VersionMismatch(too_old(message.text)) if message.code == "protocol" else refusal(message)
            assert isinstance(message, Descriptor)
            if len(fds) != 1:
                raise ProtocolError(f"{len(fds)} descriptors instead of one")
            self._given[message.number] = fds.pop()
        except ProtocolError as e:
            raise errors.ProtocolViolation(f"from the daemon: {e}") from e
        finally:
            close_all(fds)

    def leave(self, upto: int) -> None:
        """Sends `Bye` on the lease, which always has room; the line may be full if the daemon does not read."""
        with contextlib.suppress(OSError):
            self._lease.send(encode(Bye(upto)), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Closes the connection. Idempotent. A forked child only drops its copies."""
        if self._dealer is not None:
            self._dealer.close(linger=0)
            self._dealer = None
        self._lease.close()
        while self._given:
            os.close(self._given.popitem()[1])


def ask(
    runtime_dir: Path, question: Any, timeout_s: float, on_scanning: Callable[[int], None] = lambda _samples: None
) -> tuple[Connection, Any]:
    """Connects and asks one question, such as `Attach`; returns the connection and the answer.

    `timeout_s` is the longest wait for the answer, from the first step on. While the daemon lists the source, each of
    its reports restarts this time, and `on_scanning` is called with the number of samples found so far.

    Raises:
        PrepClientError: No connection could be made, or the daemon refused or did not answer.
    """
    deadline_s = time.monotonic() + timeout_s
    connection = Connection(runtime_dir, timeout_s)
    try:
        answer = Scanning(0) if connection.send(question, deadline_s - time.monotonic()) else None
        while isinstance(answer, Scanning):
            answer = connection.receive(deadline_s - time.monotonic())
            if isinstance(answer, Scanning):
                on_scanning(answer.samples)
                deadline_s = time.monotonic() + timeout_s
        if answer is None:
            raise errors.BatchTimeout(
                f"the daemon in {runtime_dir} did not answer within timeout_s = {timeout_s:g}: see its log, and "
                "`prepserver status`"
            )
    except BaseException:
        connection.close()
        raise
    return connection, answer


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    """The context of this process, one for all lines.

    It is never ended: that would wait for its sockets, and a client that is dropped without `close` is collected in no
    certain order. A forked child gets its own, and must not touch its parent's.
    """
    pid = os.getpid()
    if pid not in _contexts:
        _contexts[pid] = zmq.Context(io_threads=1)
    return _contexts[pid]


def connect(runtime_dir: Path, timeout_s: float = _DESCRIPTOR_TIMEOUT_S) -> socket.socket:
    """A connection to the attach socket.

    Raises:
        BatchTimeout: The daemon's queue of connections is full, and stays so for `timeout_s`.
        NoServer: No daemon listens there.
        NoPermission: This user may not open the socket.
        TooFewDescriptors: This process cannot open a socket.
    """
    path = runtime_dir / ATTACH_SOCKET
    with opening(1):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        _connect(sock, os.fspath(path), time.monotonic() + timeout_s)
    except BlockingIOError as e:
        sock.close()
        raise errors.BatchTimeout(
            f"the daemon in {runtime_dir} took no connection within {round(timeout_s, 2):g} s: see its log, and "
            "`prepserver status`"
        ) from e
    except PermissionError as e:
        sock.close()
        raise errors.NoPermission(
            f"no permission to use the prepserver daemon at {path} as uid {os.getuid()}: "
            f"{why_refused(os.fspath(runtime_dir), ATTACH_SOCKET, os.stat)}. A daemon of your own needs another "
            "directory (`prepserver start --runtime-dir DIR` and runtime_dir=DIR)"
        ) from e
    except OSError as e:
        sock.close()
        if e.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            # if the path is too long, the error has neither errno nor strerror
            raise errors.NoServer(f"cannot reach the prepserver daemon at {path}: {e.strerror or e}") from e
        # Daemon and client search the same places, of which this user may not be able to use the first one.
        is_first = os.fspath(runtime_dir) == trusted_dirs(os.environ, os.getuid(), os.stat)[0]
        there = "" if is_first else f" --runtime-dir {runtime_dir}"
        raise errors.NoServer(
            f"no prepserver daemon listens at {path}. Start one with `prepserver start{there}`, "
            "name another directory (runtime_dir= or $PREPSERVER_RUNTIME_DIR), or work without it: workers=N starts a "
            "private one, inline=True makes the rows in this process"
        ) from e
    return sock


def _connect(sock: socket.socket, path: str, deadline_s: float) -> None:
    """Connects, and raises BlockingIOError if the daemon's queue of connections is full until the deadline."""
    # A connect that waits in the kernel does not survive a signal: Python then takes it for connected.
    sock.setblocking(False)
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(_QUEUE_FULL_S)
        else:
            sock.setblocking(True)
            return


def ask_status(runtime_dir: Path, timeout_s: float, since_ns: int | None = None) -> dict[str, Any]:
    """The daemon's state as ``prepserver status --json`` prints it, and with `since_ns` what was done since then.

    Raises:
        PrepClientError: No daemon runs, or it gives no valid answer within `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    connection, answer = ask(runtime_dir, AskStatus(since_ns), timeout_s)
    with contextlib.closing(connection):
        if not isinstance(answer, Status):
            raise unexpected(answer)
        with open(connection.take(answer.memory, max(0.0, deadline_s - time.monotonic())), "rb") as memory:
            try:
                found = json.loads(os.pread(memory.fileno(), answer.nbytes, 0))
            except ValueError as e:
                raise errors.ProtocolViolation(f"the daemon's state is no JSON: {e}") from e
    if not isinstance(found, dict):
        raise errors.ProtocolViolation(f"the daemon's state is a {type(found).__name__}")
    return found


def unexpected(message: Any) -> errors.ProtocolViolation:
    """The error for a message that is not allowed at this point."""
    return errors.ProtocolViolation(f"unexpected {type(message).__name__} from the daemon")


def refusal(message: Refused) -> errors.PrepClientError:
    """The daemon's refusal as an exception."""
    if message.code == "spec":
        return errors.InvalidSpec(message.text, message.field or "")
    return _REFUSALS.get(message.code, errors.ProtocolViolation)(message.text)
