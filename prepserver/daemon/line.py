"""A line: one client's ZeroMQ connection, which carries all messages between it and the daemon.

libzmq accepts connections without a bound, aborts the process where descriptors run out, and queues the parts of a
message without a bound. So the daemon's end is a plain socket: it reads one message at a time, and bounds all of this.
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
"""Of messages that a client has not read, beyond what the kernel takes. One that is only stopped never has so many."""


class Line:
    """One end of a line.

    Args:
        sock: The connection. A blocking one, with a timeout, makes `receive` wait.
        allowed: Messages of the other end, see `prepserver.protocol.codec.registry`.
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
        """Of the connection."""
        return self._sock.fileno()

    def receive(self) -> Any | None:
        """The next message, or None at the end of the connection.

        Raises:
            ProtocolError: Not a message that belongs here.
            BlockingIOError: It is not there yet.
            TimeoutError: Likewise, on a socket with a timeout.
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
        """Whether there is something to read, the end of the connection included."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, message: Any) -> bool:
        """Sends `message`, as far as there is room for it, and the rest with `flush`.

        Returns:
            False if the other end has left too much unread. One that is gone is noticed by `receive`.
        """
        self._unsent += zmtp.frame(encode(message))
        return self.flush()

    def flush(self) -> bool:
        """Sends what found no room before; see `send`."""
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
        """Whether something found no room, and is still to be sent."""
        return bool(self._unsent)

    def close(self) -> None:
        """Ends the connection."""
        self._sock.close()


def open_line(path: Path, allowed: dict[str, type]) -> tuple[Line, socket.socket]:
    """Makes a line: the daemon's end, and a listening socket for its client, on which the connection waits.

    Args:
        path: Of that socket. It is gone when this returns, so nobody else can connect.
        allowed: See `Line`.

    Raises:
        OSError: There are too many descriptors.
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
