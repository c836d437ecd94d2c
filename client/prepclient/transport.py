"""Sockets to the daemon: the lease on `attach.sock`, which carries positions too, and `ctl.sock` beside it.

Thin: it moves messages and notices that the daemon is gone. What they mean is the session's business.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from prepclient import errors
from prepserver import __version__
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.messages import (
    ATTACH_SOCKET,
    CONTROL_SOCKET,
    FROM_ATTACH,
    FROM_CONTROL,
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
_UNREAD_MOST = 64
"""A connection takes some 270 messages of ours that the daemon does not read."""
_MOVE_TIMEOUT_S = 10.0  # it was sent before the message that counts it

# As plain numbers: to join flags of an enumeration takes longer than to send with them.
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_POLLIN = int(zmq.POLLIN)

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}

_REFUSALS: dict[str, type[errors.PrepClientError]] = {
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
        segment_fd: Descriptor of the ring; whoever maps it closes it.

    Raises:
        PrepClientError: One of `prepclient.errors`, naming why not.
    """

    def __init__(self, runtime_dir: Path, attach: Attach, timeout_s: float, on_scanning: Callable[[int], None]) -> None:
        self.runtime_dir = runtime_dir
        self._attach = connect(runtime_dir)
        self._dealer: zmq.Socket[bytes] | None = None
        self.segment_fd = -1
        self._moves: list[tuple[Moved, int]] = []
        self._moves_taken = 0
        self._unread = 0  # messages on the lease since the daemon last showed that it reads
        self._early: list[Any] = []  # announcements that came while a move was waited for
        try:
            self._ask(attach)
            self.welcome, self.segment_fd = self._await_welcome(timeout_s, on_scanning)
            self._connect_control()
        except BaseException:
            self.close()
            raise

    def _ask(self, attach: Attach) -> None:
        try:
            self._attach.send(encode(attach))
        except OSError as e:  # it was killed with our connection still in its queue
            raise errors.ServerGone(
                f"the prepserver daemon in {self.runtime_dir} ended while this client was attaching: {e.strerror}"
            ) from e

    def _await_welcome(self, timeout_s: float, on_scanning: Callable[[int], None]) -> tuple[Welcome, int]:
        while True:
            message, fd = receive(self._attach, timeout_s, self.runtime_dir)
            match message:
                case Scanning(samples):
                    on_scanning(samples)
                case Welcome():
                    if fd < 0:
                        raise errors.ProtocolViolation("the daemon's welcome came without a segment")
                    return message, fd
                case Refused():
                    raise refusal(message)
                case _:
                    raise errors.ProtocolViolation(f"unexpected {type(message).__name__} from the daemon")

    def _connect_control(self) -> None:
        dealer = _context().socket(zmq.DEALER)
        self._dealer = dealer
        dealer.setsockopt(zmq.ROUTING_ID, self.welcome.token)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        dealer.setsockopt(zmq.RECONNECT_IVL, 20)
        dealer.connect(f"ipc://{self.runtime_dir / CONTROL_SOCKET}")
        self._attach.setblocking(False)
        self._attached = select.poll()
        self._attached.register(self._attach, select.POLLIN)
        self._attach_fd = self._attach.fileno()
        self._poller = select.poll()
        self._poller.register(dealer, select.POLLIN)
        self._poller.register(self._attach, select.POLLIN)

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
        """Sends on the control channel.

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
        """Messages on either channel, waiting up to `timeout_s` for the first.

        Raises:
            ServerGone: The daemon's end of the lease is closed.
            ProtocolViolation: A message that the protocol does not allow.
        """
        got = self._take()
        if got or timeout_s <= 0:
            return got
        # poll counts in milliseconds and a device's copies end in between.
        # ORDER: `_take` has just emptied the control channel, whose descriptor is edge-triggered.
        arrived = self._poller.poll(max(1, round(timeout_s * 1000)))
        if any(fd == self._attach_fd for fd, _ in arrived):
            return self._take_one()
        return self._drain()

    def _take(self) -> list[Any]:
        got, self._early = self._early, []
        return [*got, *self._drain_attach(), *self._drain()]

    def _drain_attach(self) -> list[Any]:
        """What has come on the attach connection: the daemon's short way for announcements, and moves.

        Raises:
            PrepClientError: It is at its end and held nothing more, or the daemon's last word.
        """
        got: list[Any] = []
        # Asked first, as in `_drain`.
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
            message, fd = _read(self._attach, self.runtime_dir)
        except BlockingIOError:
            return []
        self._unread = 0
        match message:
            case Ready() | Fault():
                return [message]
            case Moved() if fd >= 0:
                self._moves.append((message, fd))
                return []
            case Refused():
                raise refusal(message)
            case _:
                raise errors.ProtocolViolation(f"unexpected {type(message).__name__} from the daemon")

    def _drain(self) -> list[Any]:
        assert self._dealer is not None
        messages: list[Any] = []
        # Asked first: it is mostly nothing, and an exception that says so costs several times as much.
        while int(self._dealer.getsockopt(zmq.EVENTS)) & _POLLIN:
            try:
                data = self._dealer.recv(zmq.DONTWAIT)
            except zmq.Again:
                return messages
            try:
                messages.append(decode(data, FROM_CONTROL))
            except ProtocolError as e:
                raise errors.ProtocolViolation(f"from the daemon: {e}") from e
        return messages

    def say_bye(self, upto: int) -> None:
        """The last word: this rank's training loop got its batches that start below `upto`."""
        # On the attach connection: the other one may lose what is sent just before its end.
        with contextlib.suppress(OSError):
            self._attach.send(encode(Bye(upto)), _AT_ONCE)

    def close(self) -> None:
        """Ends the lease. Idempotent."""
        if self._dealer is not None:
            self._dealer.close(linger=0)
            self._dealer = None
        self._attach.close()
        for _, fd in self._moves:
            os.close(fd)
        self._moves = []
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


def connect(runtime_dir: Path) -> socket.socket:
    """A connection to the attach socket.

    Raises:
        NoServer: Nobody listens there.
        NoPermission: The socket may not be opened by this user.
    """
    path = runtime_dir / ATTACH_SOCKET
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
            raise errors.NoServer(f"cannot reach the prepserver daemon at {path}: {e.strerror}") from e
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
        try:
            sock.send(encode(AskStatus(__version__)))
        except OSError as e:
            raise errors.ServerGone(f"the prepserver daemon in {runtime_dir} ended: {e.strerror}") from e
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
        ServerGone: The connection ended.
        BatchTimeout: Nothing within `timeout_s`.
        ProtocolViolation: Not a message of this channel.
    """
    sock.settimeout(max(0.001, timeout_s))
    try:
        return _read(sock, runtime_dir)
    except TimeoutError as e:
        raise errors.BatchTimeout(
            f"the daemon in {runtime_dir} did not answer within timeout_s = {timeout_s:g}: "
            "see its log, and `prepserver status`"
        ) from e


def _read(sock: socket.socket, runtime_dir: Path) -> tuple[Any, int]:
    try:
        data, fds = _receive_with_fds(sock)
    except (TimeoutError, BlockingIOError):
        raise
    except OSError as e:
        raise errors.ServerGone(f"the daemon in {runtime_dir} ended: {e.strerror}") from e
    for extra in fds[1:]:
        os.close(extra)
    fd = fds[0] if fds else -1
    if not data:
        raise errors.ServerGone(
            f"the prepserver daemon in {runtime_dir} ended or was killed. Its log says why; start it again with "
            "`prepserver start` and go on from `state_dict()`"
        )
    try:
        return decode(data, FROM_ATTACH), fd
    except ProtocolError as e:
        if fd >= 0:
            os.close(fd)
        raise errors.ProtocolViolation(f"from the daemon: {e}") from e


def _receive_with_fds(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors, close-on-exec from the start (`socket.recv_fds` drops that flag)."""
    room = socket.CMSG_SPACE(_MOST_FDS * struct.calcsize("i"))
    data, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE_BYTES + 1, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
    return data, fds


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
