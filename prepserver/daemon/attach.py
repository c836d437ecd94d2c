"""The attach socket: who is there, which descriptors they are given, and how their death is seen.

A plain unix SEQPACKET socket, because it alone gives kernel credentials, descriptor passing and a pidfd of
the peer. A connection is a lease: it stays open as long as the job, and its end is the job's end. The pidfd
sees a death that an inherited copy of the socket would hide. What is said goes over the peer's line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

from prepserver.daemon.line import Line, open_line
from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.codec import encode
from prepserver.protocol.messages import TO_DAEMON, Descriptor, Refused

_SO_PEERPIDFD = 77  # Linux 6.5
_UCRED = struct.Struct("3i")
_BACKLOG = 128
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_PAUSE_S = 0.01

OUT_OF_DESCRIPTORS = Refused("busy", "the daemon is out of descriptors: try again later")


class Peer:
    """One connection on the attach socket, and the line that belongs to it.

    Attributes:
        sock: The lease, non-blocking.
        line: What is said; None before `open`.
        pidfd: Readable when the process is dead, or -1 where the kernel gives none.
        pid: As the kernel says, in the daemon's pid namespace.
        uid: As the kernel says.
        since_s: When it was accepted, or was told the last word, monotonic.
        asked: True after its one question: a second one is an error.
        is_told: Whether it was told the last word, and is to hang up, or was hung up on.
        cursor: The daemon's number of its attachment, once it has one.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.pid, self.uid, self.gid = _UCRED.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        )
        self.pidfd = _peer_pidfd(sock, self.pid)
        self.line: Line | None = None
        self.since_s = time.monotonic()
        self.asked = False
        self.is_told = False
        self.cursor: int | None = None
        self._given = 0

    def fileno(self) -> int:
        """Of the lease."""
        return self.sock.fileno()

    @property
    def is_listening(self) -> bool:
        """Whether there is any point in telling it something."""
        return self.fileno() >= 0 and not self.is_told

    def open(self, path: Path) -> None:
        """Gives the peer its line.

        Args:
            path: Where its socket is for a moment.

        Raises:
            OSError: No descriptor is left, or the peer is gone.
        """
        self.line, theirs = open_line(path, TO_DAEMON)
        with theirs:
            self.give(theirs.fileno())

    def give(self, fd: int) -> int:
        """Gives the peer a descriptor.

        Returns:
            Its number, for the message that names it.

        Raises:
            OSError: The peer is gone, or takes none of those that it was given.
        """
        number, self._given = self._given, self._given + 1
        socket.send_fds(self.sock, [encode(Descriptor(number))], [fd], socket.MSG_NOSIGNAL)
        return number

    def send(self, message: Any) -> bool:
        """Sends `message` on the line. False if there is none, or the peer has left too much unread."""
        return self.line is not None and self.line.send(message)

    def turn_away(self, refused: Refused) -> None:
        """Tells one who has asked nothing why not. Its connection is to be closed then."""
        with contextlib.suppress(OSError):
            self.sock.send(encode(refused), socket.MSG_NOSIGNAL)

    def hang_up(self) -> None:
        """Ends the lease; that is then read from it, as if the peer had ended it."""
        self.is_told = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the lease and the line."""
        self.sock.close()
        if self.line is not None:
            self.line.close()
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
            peer = Peer(sock)
            peer.turn_away(OUT_OF_DESCRIPTORS)
            peer.close()
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
