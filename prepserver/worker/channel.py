"""Messages and descriptors over a SEQPACKET pair: blocking for a child, never blocking for the daemon.

One packet is one message, so no message arrives in parts. If the peer ends, reading gives an end of file.
"""

from __future__ import annotations

import array
import collections
import errno
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prepserver.memory.passing import CUT_SHORT, close_all, receive_with_fds
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.schema import ProtocolError

MAX_QUEUED = 4096
"""Most messages that wait for a peer to read: many times as many as an honest peer needs (a stream of 64 lanes)."""


class ChannelClosed(ConnectionError):
    """The peer is gone."""


class CannotPass(ChannelClosed):
    """The peer is there, and the kernel takes no message for it at present: descriptors or memory are short."""


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
        BlockingIOError: The socket is non-blocking and nothing has arrived.
        ProtocolError: Not one of `allowed`, or cut short; its descriptors are closed.
    """
    try:
        data, fds, flags = receive_with_fds(sock)
    except ConnectionResetError as e:
        raise ChannelClosed("connection reset") from e
    try:
        if not data:
            raise ChannelClosed("end of file")
        if flags & CUT_SHORT:
            raise ProtocolError("a message was cut short by the kernel (no descriptor left in this process?)")
        return decode(data, allowed), fds
    except (ChannelClosed, ProtocolError):
        close_all(fds)
        raise


def _send(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    try:
        if fds:
            sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        else:
            sock.send(data)
    except ConnectionError as e:
        raise ChannelClosed(str(e)) from e
    except OSError as e:
        if e.errno == errno.ETOOMANYREFS:
            raise CannotPass("too many descriptors are on their way to clients that do not take them") from e
        raise


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
        """True while messages wait for room: poll for writing and call `flush`."""
        return bool(self._queued)

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Sends `message`, or queues it; the caller may close `fds` at once.

        Raises:
            ChannelClosed: The peer is gone, or `MAX_QUEUED` messages wait for it.
            CannotPass: Descriptors or memory are short.
        """
        data = encode(message)
        if not self._queued and self._takes(data, fds):
            return
        if len(self._queued) >= MAX_QUEUED:
            raise ChannelClosed(f"the peer does not read: {MAX_QUEUED} messages are waiting")
        copies: list[int] = []
        try:
            copies.extend(os.dup(fd) for fd in fds)
        except OSError as e:
            close_all(copies)
            raise CannotPass(f"no copy of a descriptor for a message that must wait: {e.strerror}") from e
        self._queued.append((data, copies))

    def flush(self) -> None:
        """Sends queued messages while there is room; raises as `send` does."""
        while self._queued and self._takes(*self._queued[0]):
            close_all(self._queued.popleft()[1])

    def _takes(self, data: bytes, fds: Sequence[int]) -> bool:
        """Sends at once; returns False if there is no room."""
        try:
            _send(self.sock, data, fds)
        except BlockingIOError:
            return False
        except ChannelClosed:
            raise
        except OSError as e:
            raise CannotPass(e.strerror) from e
        return True

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
