"""The attach socket: who is there, what they ask first, and how their death is seen.

A plain unix SEQPACKET socket, because it alone gives kernel credentials, descriptor passing and a pidfd of
the peer. A connection is a lease: it stays open as long as the job, and its end is the job's end. The pidfd
sees a death that an inherited copy of the socket would hide.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any

from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.messages import TO_ATTACH, Bye, Refused, Release
from prepserver.protocol.schema import ProtocolError

_SO_PEERPIDFD = 77  # Linux 6.5
_UCRED = struct.Struct("3i")
_BACKLOG = 128
_KEPT_MOST = 4
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_PAUSE_S = 0.01


class Peer:
    """One connection on the attach socket.

    Attributes:
        sock: The connection, non-blocking.
        pidfd: Readable when the process is dead, or -1 where the kernel gives none.
        pid: As the kernel says, in the daemon's pid namespace.
        uid: As the kernel says.
        since_s: When it was accepted, monotonic.
        asked: True after its one question: a second one is an error.
        cursor: The daemon's number of its attachment, once it has one.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.pid, self.uid, self.gid = _UCRED.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        )
        self.pidfd = _peer_pidfd(sock, self.pid)
        self.since_s = time.monotonic()
        self.asked = False
        self.cursor: int | None = None
        self._kept: deque[tuple[Any, int]] = deque()  # with descriptors of our own

    def fileno(self) -> int:
        """Of the connection."""
        return self.sock.fileno()

    def receive(self) -> Any | None:
        """The peer's message, or None at the end of the connection.

        Raises:
            ProtocolError: Not a message that belongs here.
            BlockingIOError: Nothing to read.
        """
        try:
            data = self._read()
        except ConnectionResetError:
            return None
        if not data:
            return None
        message = decode(data, TO_ATTACH)
        if self.asked and not isinstance(message, Release | Bye):
            raise ProtocolError("one question per connection")
        self.asked = True
        return message

    def has_said_more(self) -> bool:
        """Whether there is something to read, the end of the connection included; False once it is closed here."""
        if self.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def _read(self) -> bytes:
        # No room for ancillary data: descriptors that a peer sends are closed by the kernel.
        try:
            return self.sock.recv(MAX_MESSAGE_BYTES + 1)
        except ConnectionResetError:
            # A peer that closes with announcements unread resets the connection. Linux says that once, and before
            # what the peer had sent: its last word is still to be read.
            return self.sock.recv(MAX_MESSAGE_BYTES + 1)

    def send(self, message: Any, *fds: int) -> bool:
        """Sends `message`, with descriptors if any are given. False if the peer is gone or does not read."""
        try:
            if fds:
                socket.send_fds(self.sock, [encode(message)], fds, socket.MSG_NOSIGNAL)
            else:
                self.sock.send(encode(message), socket.MSG_NOSIGNAL)
        except (OSError, ProtocolError):
            return False
        return True

    def send_or_keep(self, message: Any, fd: int) -> None:
        """Sends `message` with a descriptor, or keeps both for `send_kept`: one who does not read may only be stopped.

        Raises:
            OSError: There was no room, and it cannot be kept: no descriptor is left, or too many are kept already.
        """
        if self._kept or not self.send(message, fd):
            if len(self._kept) >= _KEPT_MOST:
                raise OSError(errno.ENOBUFS, f"{_KEPT_MOST} moves wait for a client that reads nothing")
            self._kept.append((message, os.dup(fd)))

    @property
    def is_owed(self) -> bool:
        """Whether messages are kept that must come before all others."""
        return bool(self._kept)

    def send_kept(self) -> bool:
        """Sends what was kept, in its order. False if some is left."""
        while self._kept and self.send(*self._kept[0]):
            os.close(self._kept.popleft()[1])
        return not self._kept

    def turn_away(self, text: str) -> None:
        """Says that the daemon is busy, and closes."""
        # A question that is left unread would reset the connection, and the client would read that first.
        with contextlib.suppress(OSError):
            self.sock.recv(1)
        self.send(Refused("busy", text))
        self.close()

    def hang_up(self) -> None:
        """Ends the connection; that is then read from it, as if the peer had ended it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the lease."""
        self.sock.close()
        while self._kept:
            os.close(self._kept.popleft()[1])
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Listener:
    """Accepts peers at `path`.

    Args:
        path: Of the socket; made here, unless one is given.
        door: Who may connect to it, where the directory lets them pass.
        made: A socket that listens there already.
    """

    def __init__(self, path: Path, door: Door, made: socket.socket | None = None) -> None:
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if made is not None:
            self.sock = made
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self.sock.bind(os.fspath(path))
            door.hang(path)
            self.sock.listen(_BACKLOG)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Readable when somebody connects."""
        return self.sock.fileno()

    def accept(self) -> Peer | None:
        """The next peer, or None."""
        try:
            sock, _ = self.sock.accept()
        except OSError as e:  # mostly: nobody is there any more
            if e.errno in _NO_DESCRIPTOR:
                self._turn_away()
            return None
        try:
            return Peer(sock)
        except OSError:  # gone between connect and now
            sock.close()
            return None

    def _turn_away(self) -> None:
        """Takes a connection by the spare descriptor, to say no. One left in the queue would wake the loop for ever."""
        spare, self._spare = self._spare, -1
        try:
            if spare >= 0:
                os.close(spare)
            sock, _ = self.sock.accept()
            Peer(sock).turn_away("the daemon is out of descriptors: try again later")
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Stops listening."""
        self.sock.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


def _peer_pidfd(sock: socket.socket, pid: int) -> int:
    with contextlib.suppress(OSError):
        return struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]  # type: ignore[no-any-return]
    with contextlib.suppress(OSError):
        # Before 6.5: the pid could have been reused between connect and here, then we watch a stranger and
        # the connection's end remains as the signal.
        return os.pidfd_open(pid)
    return -1
