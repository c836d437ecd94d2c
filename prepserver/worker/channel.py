"""Messages and descriptors over a SEQPACKET pair: blocking for a child, never blocking for the daemon.

One packet is one message, so nothing is ever half received, and the end of the peer is an end of file.
"""

from __future__ import annotations

import array
import collections
import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.schema import ProtocolError

MAX_FDS = 4
_FD_BYTES = array.array("i").itemsize
_CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # a plain number: enumerations are slow, and each message asks
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FDS * _FD_BYTES)
MAX_QUEUED = 4096
"""Messages waiting for a peer that does not read: many times the honest most (a stream of 64 lanes)."""


class ChannelClosed(ConnectionError):
    """The peer is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a new line."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Sends `message`, waiting for room.

    Raises:
        ChannelClosed: The peer is gone.
    """
    _send(sock, encode(message), fds)


def receive(sock: socket.socket, allowed: Mapping[str, type]) -> tuple[Any, list[int]]:
    """The next message and its descriptors (close-on-exec, the caller's own).

    Raises:
        ChannelClosed: The peer is gone.
        BlockingIOError: The socket is non-blocking and nothing is there.
        ProtocolError: Not one of `allowed`, or cut short; its descriptors are closed.
    """
    data, fds, flags = _receive(sock)
    try:
        if not data:
            raise ChannelClosed("end of file")
        if flags & _CUT_SHORT:
            raise ProtocolError("a message was cut short by the kernel (no descriptor left in this process?)")
        return decode(data, allowed), fds
    except (ChannelClosed, ProtocolError):
        close_all(fds)
        raise


def _receive(sock: socket.socket) -> tuple[bytes, list[int], int]:
    for _attempt in range(2):
        try:
            # not socket.recv_fds: it leaves out the flags (seen in CPython 3.11), so the descriptors would leak
            # into every program that is started from here
            data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE_BYTES + 1, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            # The peer died with unread messages of ours. The kernel says so once, ahead of the peer's own
            # last messages, which are still there to be read.
            continue
        if not ancillary:
            return data, [], flags
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % _FD_BYTES])
        return data, fds.tolist(), flags
    raise ChannelClosed("connection reset")


def _send(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    try:
        if fds:
            sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        else:
            sock.send(data)
    except ConnectionError as e:
        raise ChannelClosed(str(e)) from e


class Channel:
    """The daemon's end: sends never wait, what does not fit is kept until `flush`.

    Args:
        sock: Taken over and made non-blocking.
        allowed: What the peer may say.
    """

    def __init__(self, sock: socket.socket, allowed: Mapping[str, type]) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._allowed = allowed
        self._queued: collections.deque[tuple[bytes, list[int]]] = collections.deque()

    def fileno(self) -> int:
        """For poll."""
        return self.sock.fileno()

    @property
    def blocked(self) -> bool:
        """Whether messages wait for the peer to read: poll for writing and call `flush`."""
        return bool(self._queued)

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Sends `message`, now or after what is queued; the caller may close `fds` at once.

        Raises:
            ChannelClosed: The peer is gone, or has read nothing for `MAX_QUEUED` messages.
        """
        data = encode(message)
        if not self._queued:
            try:
                _send(self.sock, data, fds)
                return
            except BlockingIOError:
                pass
        if len(self._queued) >= MAX_QUEUED:
            raise ChannelClosed(f"the peer does not read: {MAX_QUEUED} messages are waiting")
        self._queued.append((data, [os.dup(fd) for fd in fds]))

    def flush(self) -> None:
        """Sends what is queued, as far as there is room.

        Raises:
            ChannelClosed: The peer is gone.
        """
        while self._queued:
            data, fds = self._queued[0]
            try:
                _send(self.sock, data, fds)
            except BlockingIOError:
                return
            self._queued.popleft()
            close_all(fds)

    def receive(self, most: int | None = None) -> Iterator[tuple[Any, list[int]]]:
        """Yields what has arrived: messages with their descriptors (the caller's own).

        Args:
            most: Messages that are yielded; None for all. A poll by level comes back for the rest, so where one
                message is what there usually is, one costs no second system call that finds nothing.

        Raises:
            ChannelClosed: The peer is gone; everything that it had sent was yielded before.
            ProtocolError: The peer sends what it may not.
        """
        while most is None or most > 0:
            try:
                yield receive(self.sock, self._allowed)
            except BlockingIOError:
                return
            if most is not None:
                most -= 1

    def close(self) -> None:
        """Hangs up. What is queued is dropped. Again does nothing."""
        for _, fds in self._queued:
            close_all(fds)
        self._queued.clear()
        self.sock.close()


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors that came with a message."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
