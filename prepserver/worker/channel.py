"""Messages and descriptors over a SEQPACKET pair: blocking for a child, never blocking for the daemon.

One packet is one message, so no message arrives in parts, and the peer's end is an end of file.
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
_CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # a plain number, because enumerations are slow
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FDS * _FD_BYTES)
MAX_QUEUED = 4096
"""Most messages that wait for a peer to read: many times what an honest peer needs (a stream of 64 lanes)."""


class ChannelClosed(ConnectionError):
    """The peer is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a new line."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Sends `message` and waits for room; raises `ChannelClosed` if the peer is gone."""
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
            # Not socket.recv_fds: CPython 3.11 does not pass its flags on, so every program that is started from here
            # would inherit the descriptors.
            data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE_BYTES + 1, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            # The peer died with unread messages of ours. The kernel reports it once, before the peer's own last
            # messages, which can still be read.
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
    """The daemon's end: sends never wait; messages without room are queued until `flush`.

    It may receive the messages `allowed`. Its socket becomes non-blocking, and is closed by this object.
    """

    def __init__(self, sock: socket.socket, allowed: Mapping[str, type]) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._allowed = allowed
        self._queued: collections.deque[tuple[bytes, list[int]]] = collections.deque()

    def fileno(self) -> int:
        """Descriptor of the line, for poll; -1 after `close`."""
        return self.sock.fileno()

    @property
    def blocked(self) -> bool:
        """Whether messages wait for room: poll for writing and call `flush`."""
        return bool(self._queued)

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Sends `message`, or queues it; the caller may close `fds` at once.

        Raises:
            ChannelClosed: The peer is gone, or `MAX_QUEUED` messages wait for it.
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
        """Sends queued messages while there is room; raises `ChannelClosed` if the peer is gone."""
        while self._queued:
            data, fds = self._queued[0]
            try:
                _send(self.sock, data, fds)
            except BlockingIOError:
                return
            self._queued.popleft()
            close_all(fds)

    def receive(self, most: int | None = None) -> Iterator[tuple[Any, list[int]]]:
        """Yields the messages that have arrived, with their descriptors, which the caller closes.

        It yields at most `most`. With 1, the usual single message costs no second system call; level-triggered polling
        reports the rest.

        Raises:
            ChannelClosed: The peer is gone; everything that it had sent was yielded before.
            ProtocolError: The peer broke the protocol.
        """
        while most is None or most > 0:
            try:
                yield receive(self.sock, self._allowed)
            except BlockingIOError:
                return
            if most is not None:
                most -= 1

    def close(self) -> None:
        """Hangs up and drops queued messages. A second call does nothing."""
        for _, fds in self._queued:
            close_all(fds)
        self._queued.clear()
        self.sock.close()


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors that came with a message."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
