"""A line: the ZeroMQ connection of one client, which carries all messages between it and the daemon.

libzmq accepts any number of connections, aborts the process when descriptors run out, and queues any number of message
parts. So the daemon's end is a plain socket, which reads one message at a time.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path
from typing import Any

from prepserver.protocol import zmtp
from prepserver.protocol.codec import decode, encode

UNREAD_MOST_BYTES = 1 << 20
"""Most bytes that a client may leave unread, beyond the kernel's buffer. A suspended client never reaches it."""


class Line:
    """One end of a line.

    Args:
        sock: The connection. If it is blocking with a timeout, `receive` waits.
        allowed: Messages of the other end; see `prepserver.protocol.codec.registry`.
    """

    def __init__(self, sock: socket.socket, allowed: dict[str, type]) -> None:
        self._sock = sock
        self._allowed = allowed
        self._received = zmtp.received()
        self._need = next(self._received)
        self._got = b""
        self._is_open = False
        self._unsent = b""
        sock.send(zmtp.OPENING, socket.MSG_NOSIGNAL)

    def fileno(self) -> int:
        """Descriptor of the connection."""
        return self._sock.fileno()

    def receive(self) -> Any | None:
        """The next message; None at the end of the connection.

        Raises:
            ProtocolError: Not an allowed message.
            BlockingIOError: No whole message has arrived.
            TimeoutError: The same, on a socket with a timeout.
        """
        while True:
            assert isinstance(self._need, int)
            try:
                part = self._sock.recv(self._need - len(self._got))
            except ConnectionResetError:
                return None
            if not part:
                return None
            self._got += part
            if len(self._got) < self._need:
                continue
            found, self._got = self._received.send(self._got), b""
            if isinstance(found, int):
                self._need = found
                continue
            self._need = self._received.send(b"")
            if self._is_open:
                return decode(found, self._allowed)
            self._is_open = True
            self.flush()

    def has_more(self) -> bool:
        """Whether something can be read, such as the end of the connection."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, message: Any) -> bool:
        """Sends as much of `message` as the kernel takes; `flush` sends the rest.

        Returns:
            False if the other end has left too much unread. If it is gone, `receive` returns None.
        """
        self._unsent += zmtp.frame(encode(message))
        return self.flush()

    def flush(self) -> bool:
        """Sends what the kernel did not take before; see `send`."""
        try:
            while self._unsent and self._is_open:
                sent = self._sock.send(self._unsent, socket.MSG_NOSIGNAL)
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""
        return len(self._unsent) <= UNREAD_MOST_BYTES

    @property
    def is_behind(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._unsent)

    def close(self) -> None:
        """Ends the connection."""
        self._sock.close()


def open_line(path: Path, allowed: dict[str, type]) -> tuple[Line, socket.socket]:
    """Makes a line: the daemon's end, and a listening socket for the client, in whose queue the connection waits.

    The path of that socket is removed before this returns, so that nobody else can connect.

    Raises:
        OSError: No descriptor is left.
    """
    kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket(socket.AF_UNIX, kind))
        ours = undo.enter_context(socket.socket(socket.AF_UNIX, kind))
        os.fchmod(listener.fileno(), 0o600)  # the mode of the path that bind makes
        listener.bind(os.fspath(path))
        try:
            listener.listen(1)
            ours.connect(os.fspath(path))
        finally:
            path.unlink(missing_ok=True)
        line = Line(ours, allowed)
        undo.pop_all()
        return line, listener
