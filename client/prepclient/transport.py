"""Sockets to the daemon: the lease on `attach.sock`, which carries positions too, and the control line beside it.

Thin: it moves messages and notices that the daemon is gone. What they mean is the session's business.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

from prepclient import errors
from prepserver import __version__
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.messages import (
    ATTACH_SOCKET,
    FROM_ATTACH,
    AskStatus,
    Attach,
    Bye,
    Fault,
    Moved,
    Ready,
    Refused,
    Release,
    Scanning,
    Status,
    Welcome,
)
from prepserver.protocol.schema import ProtocolError

_MOST_FDS = 4
_WELCOME_FDS = 2  # the segment, and the socket of the control line
_LINE = "ipc://control-line"  # libzmq wants a name for a socket that it is given
_UNREAD_MOST = 64
"""A connection takes some 270 messages of ours that the daemon does not read."""
_MOVE_TIMEOUT_S = 10.0  # it was sent before the message that counts it

# As plain numbers: to join flags of an enumeration takes longer than to send with them.
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}

_DESCRIPTORS = 20
"""A client holds ten at most: five of libzmq's context, two of its socket, the lease, and two rings while it moves. The
rest is for whatever is opened for a moment, such as an import, and by other threads meanwhile."""

_REFUSALS: dict[str, type[errors.PrepClientError]] = {
    "busy": errors.ServerBusy,
    "memory": errors.MemoryRefused,
    "permission": errors.NoPermission,
    "protocol": errors.VersionMismatch,
    "source": errors.SourceUnavailable,
    "stopping": errors.ServerGone,
}


class Lease:
    """An attachment to a daemon, from Welcome to `close`.

    Args:
        runtime_dir: The daemon's.
        attach: What to ask for.
        timeout_s: For the daemon's answer; scanning a source starts it anew with every sign of progress.
        on_scanning: Called with the number of samples found, while the daemon lists the source.

    Attributes:
        welcome: The daemon's answer.
        segment_fd: Descriptor of the ring, until `let_go_of_segment`.

    Raises:
        PrepClientError: One of `prepclient.errors`, naming why not.
    """

    def __init__(self, runtime_dir: Path, attach: Attach, timeout_s: float, on_scanning: Callable[[int], None]) -> None:
        self.runtime_dir = runtime_dir
        self._dealer: zmq.Socket[bytes] | None = None
        self.segment_fd = -1
        self._moves: list[tuple[Moved, int]] = []
        self._moves_taken = 0
        self._unread = 0  # messages on the lease since the daemon last showed that it reads
        self._early: list[Any] = []  # announcements that came while a move was waited for
        self._attach = connect(runtime_dir)
        try:
            self._ask(attach)
            self.welcome, self.segment_fd, line = self._await_welcome(timeout_s, on_scanning)
            self._open_line(line)
        except BaseException:
            self.close()
            raise

    def _ask(self, attach: Attach) -> None:
        try:
            self._attach.send(encode(attach))
        except OSError as e:  # it was killed with our connection still in its queue, or has refused us already
            with contextlib.suppress(errors.ServerGone, errors.BatchTimeout):
                message, _ = receive(self._attach, 0.0, self.runtime_dir)
                if isinstance(message, Refused):
                    raise refusal(message) from e
            raise errors.ServerGone(
                f"the prepserver daemon in {self.runtime_dir} ended while this client was attaching: {e.strerror}"
            ) from e

    def _await_welcome(self, timeout_s: float, on_scanning: Callable[[int], None]) -> tuple[Welcome, int, int]:
        while True:
            message, fds = _receive_within(self._attach, timeout_s, self.runtime_dir)
            match message:
                case Scanning(samples):
                    on_scanning(samples)
                case Welcome():
                    if len(fds) != _WELCOME_FDS:
                        _close_all(fds)
                        raise errors.ProtocolViolation(
                            f"the daemon's welcome came with {len(fds)} descriptors instead of {_WELCOME_FDS}"
                        )
                    segment, line = fds
                    return message, segment, line
                case Refused():
                    raise refusal(message)
                case _:
                    raise errors.ProtocolViolation(f"unexpected {type(message).__name__} from the daemon")

    def _open_line(self, listener: int) -> None:
        """Takes the daemon's connection, which waits on `listener`."""
        try:
            with _opening(1):  # libzmq aborts the process where it cannot accept for want of a descriptor
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
                raise _too_few_descriptors(2) from e
            raise errors.PrepClientError(f"no control line to the daemon in {self.runtime_dir}: {e.strerror}") from e
        self._attach.setblocking(False)
        self._attached = select.poll()
        self._attached.register(self._attach, select.POLLIN)

    def moves(self, count: int) -> list[tuple[Moved, int]]:
        """What `Moved` messages have come since the last call, with their descriptors (the caller's from here on).

        Args:
            count: How many there must have been in all: a `Ready` has said so, and they were sent before it.

        Raises:
            PrepClientError: The daemon ended meanwhile, or something else came.
        """
        deadline_s = time.monotonic() + _MOVE_TIMEOUT_S
        while self._moves_taken + len(self._moves) < count:
            # Not select: a training process may have more than its 1024 descriptors.
            if not self._attached.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                raise errors.ProtocolViolation("the daemon counted a move that it did not send")
            self._early += self._drain_attach()
        taken, self._moves = self._moves, []
        self._moves_taken += len(taken)
        return taken

    def send(self, message: Any, wait_s: float = 0.0) -> bool:
        """Sends on the control line.

        Returns:
            False if it could not be queued in `wait_s` (not connected, or the daemon does not read): the
            next `Release` or `Sync` says the same and more.
        """
        assert self._dealer is not None
        data = encode(message)
        if wait_s and not self._dealer.poll(int(wait_s * 1000), zmq.POLLOUT):
            return False
        try:
            self._dealer.send(data, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def release(self, message: Release) -> None:
        """Tells what is given back: on the attach connection, which wakes no thread; if that is full, on the other."""
        if self._unread >= _UNREAD_MOST:
            self.send(message)  # the last word must find room
            return
        self._unread += 1
        try:
            self._attach.send(encode(message), _AT_ONCE)
        except BlockingIOError:
            self.send(message)
        except OSError:
            pass  # the daemon has ended: `receive` says so

    def receive(self, timeout_s: float) -> list[Any]:
        """What the daemon says, waiting up to `timeout_s` for the first message.

        Raises:
            ServerGone: The daemon's end of the lease is closed.
            ProtocolViolation: A message that the protocol does not allow.
        """
        got = self._take()
        if got or timeout_s <= 0:
            return got
        # poll counts in milliseconds and a device's copies end in between.
        return self._take_one() if self._attached.poll(max(1, round(timeout_s * 1000))) else []

    def _take(self) -> list[Any]:
        got, self._early = self._early, []
        return [*got, *self._drain_attach()]

    def _drain_attach(self) -> list[Any]:
        """What has come on the attach connection: announcements and moves.

        Raises:
            PrepClientError: It is at its end and held nothing more, or the daemon's last word.
        """
        got: list[Any] = []
        # Asked first: it is mostly nothing, and an exception that says so costs several times as much.
        while self._attached.poll(0):
            try:
                got += self._take_one()
            except errors.ServerGone:
                if got:
                    return got  # what came before the end counts; the end is seen again
                raise
        return got

    def _take_one(self) -> list[Any]:
        try:
            message, fds = _read(self._attach, self.runtime_dir)
        except BlockingIOError:
            return []
        self._unread = 0
        match message:
            case Ready() | Fault():
                return [message]
            case Moved() if len(fds) == 1:
                self._moves.append((message, fds[0]))
                return []
            case Refused(code="internal"):
                raise errors.ServerGone(f"the daemon ended this job: {message.text}")  # it may take it in again
            case Refused():
                raise refusal(message)
            case _:
                raise errors.ProtocolViolation(f"unexpected {type(message).__name__} from the daemon")

    def say_bye(self, upto: int) -> None:
        """The last word: this rank's training loop got its batches that start below `upto`."""
        # On the attach connection: the control line may lose what is sent just before its end.
        with contextlib.suppress(OSError):
            self._attach.send(encode(Bye(upto)), _AT_ONCE)

    def close(self) -> None:
        """Ends the lease. Idempotent; a forked child only drops its copies."""
        if self._dealer is not None:
            self._dealer.close(linger=0)
            self._dealer = None
        self._attach.close()
        for _, fd in self._moves:
            os.close(fd)
        self._moves = []
        self.let_go_of_segment()

    def let_go_of_segment(self) -> None:
        """The ring is mapped. Idempotent."""
        if self.segment_fd >= 0:
            os.close(self.segment_fd)
            self.segment_fd = -1


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    """The process's context, one for all leases.

    Never ended: ending one waits for its sockets, and a client that was dropped without `close` is collected in
    an order that nobody knows, so a context per lease could wait for ever. A forked child gets its own, and
    must not touch its parent's.
    """
    pid = os.getpid()
    if pid not in _contexts:
        _contexts[pid] = zmq.Context(io_threads=1)
    return _contexts[pid]


def check_descriptors() -> None:
    """Asked before a client opens anything: libzmq aborts the process where it cannot open what it needs.

    Raises:
        TooFewDescriptors: This process may not open as many files as a client needs.
    """
    held: list[int] = []
    try:
        with _opening(_DESCRIPTORS):
            for _ in range(_DESCRIPTORS):
                held.append(os.dup(held[0]) if held else os.eventfd(0, os.EFD_CLOEXEC))
    finally:
        for fd in held:
            os.close(fd)


@contextlib.contextmanager
def _opening(count: int) -> Iterator[None]:
    """Turns an error for want of descriptors into one that says so."""
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise _too_few_descriptors(count) from e


def _too_few_descriptors(needed: int) -> errors.TooFewDescriptors:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return errors.TooFewDescriptors(
        f"a client needs {needed} free file descriptors, and this process has fewer left: its limit (RLIMIT_NOFILE, "
        f"`ulimit -n`) is {soft}, which may be raised to {hard}. Raise it, or close files: /proc/{os.getpid()}/fd "
        "lists what is open"
    )


def connect(runtime_dir: Path) -> socket.socket:
    """A connection to the attach socket.

    Raises:
        NoServer: Nobody listens there.
        NoPermission: The socket may not be opened by this user.
        TooFewDescriptors: This process may open no socket.
    """
    path = runtime_dir / ATTACH_SOCKET
    with _opening(1):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.connect(os.fspath(path))
    except PermissionError as e:
        sock.close()
        raise errors.NoPermission(
            f"no permission to use the prepserver daemon at {path} as uid {os.getuid()}: the socket belongs to "
            f"{_owner(path)}. Ask to be added to its group, or start a daemon of your own in another "
            "directory (`prepserver start --runtime-dir DIR` and runtime_dir=DIR)"
        ) from e
    except OSError as e:
        sock.close()
        if e.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            # a path that is too long for a socket has no number and no strerror
            raise errors.NoServer(f"cannot reach the prepserver daemon at {path}: {e.strerror or e}") from e
        raise errors.NoServer(
            f"no prepserver daemon listens at {path}. Start one with `prepserver start --runtime-dir {runtime_dir}`, "
            "name another directory (runtime_dir= or $PREPSERVER_RUNTIME_DIR), or do without: workers=N starts a "
            "private one, inline=True makes the rows in this process"
        ) from e
    return sock


def ask_status(runtime_dir: Path, timeout_s: float) -> dict[str, Any]:
    """The daemon's state, as ``prepserver status --json`` prints it.

    Raises:
        PrepClientError: It is not there, or gives no proper answer within `timeout_s`.
    """
    with connect(runtime_dir) as sock:
        with contextlib.suppress(OSError):  # as in `Lease`
            sock.send(encode(AskStatus(__version__)))
        message, fd = receive(sock, timeout_s, runtime_dir)
    try:
        if isinstance(message, Refused):
            raise refusal(message)
        if not isinstance(message, Status) or fd < 0:
            raise errors.ProtocolViolation(f"unexpected {type(message).__name__} from the daemon")
        found = json.loads(os.pread(fd, message.nbytes, 0))
    except ValueError as e:
        raise errors.ProtocolViolation(f"the daemon's state is no JSON: {e}") from e
    finally:
        if fd >= 0:
            os.close(fd)
    if not isinstance(found, dict):
        raise errors.ProtocolViolation(f"the daemon's state is a {type(found).__name__}")
    return found


def receive(sock: socket.socket, timeout_s: float, runtime_dir: Path) -> tuple[Any, int]:
    """The next message on an attach connection and the descriptor that came with it (-1 if none).

    Raises:
        PrepClientError: See `_receive_within`.
    """
    message, fds = _receive_within(sock, timeout_s, runtime_dir)
    _close_all(fds[1:])
    return message, fds[0] if fds else -1


def _receive_within(sock: socket.socket, timeout_s: float, runtime_dir: Path) -> tuple[Any, list[int]]:
    """The next message on an attach connection and the descriptors that came with it.

    Raises:
        ServerGone: The connection ended.
        BatchTimeout: Nothing within `timeout_s`.
        ProtocolViolation: Not a message of this channel.
        TooFewDescriptors: The descriptor that came with it could not be taken.
    """
    sock.settimeout(max(0.001, timeout_s))
    try:
        return _read(sock, runtime_dir)
    except TimeoutError as e:
        raise errors.BatchTimeout(
            f"the daemon in {runtime_dir} did not answer within timeout_s = {timeout_s:g}: "
            "see its log, and `prepserver status`"
        ) from e


def _read(sock: socket.socket, runtime_dir: Path) -> tuple[Any, list[int]]:
    try:
        try:
            data, fds = _receive_with_fds(sock)
        except ConnectionResetError:
            # The daemon closed with something of ours unread. Linux says that once, and before the daemon's last word.
            data, fds = _receive_with_fds(sock)
    except (TimeoutError, BlockingIOError):
        raise
    except OSError as e:
        raise errors.ServerGone(f"the daemon in {runtime_dir} ended: {e.strerror}") from e
    if not data:
        _close_all(fds)
        raise errors.ServerGone(
            f"the prepserver daemon in {runtime_dir} ended or was killed. Its log says why; start it again with "
            "`prepserver start` and go on from `state_dict()`"
        )
    try:
        return decode(data, FROM_ATTACH), fds
    except ProtocolError as e:
        _close_all(fds)
        raise errors.ProtocolViolation(f"from the daemon: {e}") from e


def _receive_with_fds(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors, close-on-exec from the start (`socket.recv_fds` drops that flag)."""
    room = socket.CMSG_SPACE(_MOST_FDS * struct.calcsize("i"))
    data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE_BYTES + 1, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
    if flags & socket.MSG_CTRUNC:  # the kernel drops what there is no free number for, and says no more than this
        for fd in fds:
            os.close(fd)
        raise _too_few_descriptors(1)
    return data, fds


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def refusal(message: Refused) -> errors.PrepClientError:
    """The daemon's refusal as an exception."""
    if message.code == "spec":
        return errors.InvalidSpec(message.text, message.field or "")
    return _REFUSALS.get(message.code, errors.ProtocolViolation)(message.text)


def _owner(path: Path) -> str:
    try:
        info = path.stat()
    except OSError:
        return "another user"
    return f"uid {info.st_uid}, gid {info.st_gid}, mode {info.st_mode & 0o777:o}"
