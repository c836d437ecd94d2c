"""The control lines: one ZeroMQ connection per client, msgpack messages, positions only.

libzmq bounds neither the connections that a socket accepts nor the parts of a message, and it aborts when descriptors
run out. So the daemon accepts nothing here. For each attachment it makes one connection itself, to a listening socket
whose descriptor goes to the client with its Welcome; nobody else can reach that socket. A socket that conflates holds
one message at most, however much its client sends.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from prepserver.daemon.poll import Poll
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode
from prepserver.protocol.messages import TO_CONTROL
from prepserver.protocol.schema import ProtocolError

_CONNECT_MS = 2000
_SPARE_SOCKETS = 16
_POLLIN = int(zmq.POLLIN)  # a plain number: an enumeration's member takes a microsecond to compare with


class Received(NamedTuple):
    """A message on a control line.

    Attributes:
        cursor: The daemon's number of the attachment.
        message: What it says, or what is wrong with it.
    """

    cursor: int
    message: Any | Exception


class Control:
    """The daemon's ends of all lines.

    Args:
        path: Of the socket to which the daemon connects; it exists only while a line is made.
        most: Lines at a time.
        poll: Watches them.
    """

    def __init__(self, path: Path, most: int, poll: Poll) -> None:
        self._path = path
        self._poll = poll
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, most + _SPARE_SOCKETS)
        # libzmq starts its threads with the first socket, and aborts where descriptors are short by then.
        self._context.socket(zmq.DEALER).close()
        self._lines: dict[int, tuple[zmq.Socket[bytes], int]] = {}
        self._due: set[int] = set()

    @property
    def is_due(self) -> bool:
        """Whether something may have arrived that no poll will tell of: `receive` before the next one."""
        return bool(self._due)

    def open(self, cursor: int) -> int:
        """Makes the line of an attachment.

        Returns:
            The descriptor of a listening socket (the caller's), on which the daemon's connection waits.

        Raises:
            OSError: There are too many descriptors or sockets, or libzmq does not connect.
        """
        with contextlib.closing(self._listen()) as listener:
            try:
                self._connect(cursor)
                # Once the connection waits in its queue, the path can go: nobody else can connect.
                if not _is_readable(listener):
                    raise TimeoutError(f"no control line came about within {_CONNECT_MS / 1000:g} s")
            except zmq.ZMQError as e:
                self.shut(cursor)
                raise OSError(e.errno, e.strerror) from e
            except OSError:
                self.shut(cursor)
                raise
            finally:
                self._path.unlink(missing_ok=True)
            return listener.detach()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            os.fchmod(listener.fileno(), 0o600)  # the mode of the path that bind makes
            listener.bind(os.fspath(self._path))
            listener.listen(1)
        except OSError:
            listener.close()
            raise
        return listener

    def _connect(self, cursor: int) -> None:
        line = self._context.socket(zmq.DEALER)
        try:
            line.setsockopt(zmq.CONFLATE, 1)
            line.setsockopt(zmq.LINGER, 0)
            line.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            line.setsockopt(zmq.RECONNECT_IVL, -1)
            # A stopped client may take any time to answer. It has its lease, and the line costs no more then.
            line.setsockopt(zmq.HANDSHAKE_IVL, 0)
            line.connect(f"ipc://{self._path}")
            fd = int(line.getsockopt(zmq.FD))
        except zmq.ZMQError:
            line.close()
            raise
        self._lines[cursor] = line, fd
        self._poll.watch(fd, lambda: self._due.add(cursor))

    def receive(self) -> Iterator[Received]:
        """What has arrived, at most one message of each line: then others have their turn."""
        due, self._due = self._due, set()
        for cursor in due:
            try:
                message = self._receive(cursor)
            except Exception as e:  # noqa: BLE001 - of this line; the others are still to be read
                message = e
            if message is not None:
                yield Received(cursor, message)

    def _receive(self, cursor: int) -> Any | None:
        """What a line says, None if nothing.

        Raises:
            ProtocolError: It is not what belongs there.
        """
        line, _ = self._lines.get(cursor, (None, -1))
        # Asked first: it is mostly nothing, and an exception that says so costs several times as much.
        if line is None or not int(line.getsockopt(zmq.EVENTS)) & _POLLIN:
            return None
        try:
            frame = line.recv(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return None
        self._due.add(cursor)  # its descriptor may tell of the next message no more
        if frame.more:
            # ORDER: shut before anything else reads it. The next part may have been overwritten, and libzmq
            # aborts where it finds none.
            self.shut(cursor)
            raise ProtocolError("a message of several parts; one is expected")
        return decode(frame.buffer, TO_CONTROL)

    def shut(self, cursor: int) -> None:
        """Ends a line. One that is not there is ignored."""
        line, fd = self._lines.pop(cursor, (None, -1))
        if line is not None:
            self._poll.forget(fd)
            line.close(linger=0)

    def close(self) -> None:
        """Ends all lines and the io thread."""
        for cursor in list(self._lines):
            self.shut(cursor)
        self._context.term()


def _is_readable(listener: socket.socket) -> bool:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(_CONNECT_MS))
