"""The attach socket: identifies clients, gives them descriptors, and notices their end.

It is a plain unix SEQPACKET socket, because only that gives kernel credentials, descriptor passing and a pidfd of the
peer. A connection is a lease: the job ends with it. The pidfd reveals a death that an inherited copy of the socket
would hide. Messages travel on the peer's line.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
import time
from pathlib import Path
from typing import Any

from prepserver.daemon import awake
from prepserver.daemon.line import Line, open_line
from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.codec import encode
from prepserver.protocol.messages import TO_ANY_DAEMON, TO_DAEMON, Descriptor, Refused

_SO_PEERPIDFD = 77  # Linux 6.5
_UCRED = struct.Struct("3i")
_BACKLOG = 128
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_PAUSE_S = 0.01

OUT_OF_DESCRIPTORS = Refused("busy", "the daemon is out of descriptors: try again later")


class Peer:
    """One connection on the attach socket, with its line. The kernel says who the peer is."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock  # the lease
        self.pid, self.uid = peer_of(sock)
        self.pidfd = peer_pidfd(sock)  # readable when the process is dead; -1 if the kernel gives none
        self.line: Line | None = None  # carries messages; None before `open`
        self.since_s = awake.now_s()  # when it was accepted, or when its last message was sent to it
        self.asked = False  # whether it has asked its one question
        self.is_told = False  # whether its last message was sent to it, or its lease ended by `hang_up`
        self.cursor: int | None = None  # the daemon's number for its attachment, if it has one
        self.is_queued = False  # whether what it has said waits to be read, because it has asked nothing yet
        self.is_late = False  # whether it is read for the last time, unless it asks something
        self.is_dropped = False  # whether its connection has ended, and only what it was given may be left unread
        self.mismatch = ""  # why this daemon serves no rows to its release; empty if it does
        self._given = 0  # descriptors that it was given

    def fileno(self) -> int:
        """Descriptor of the lease, for poll."""
        return self.sock.fileno()

    @property
    def is_listening(self) -> bool:
        """Whether messages can still reach it."""
        return self.fileno() >= 0 and not self.is_told

    @property
    def is_silent(self) -> bool:
        """Whether it has asked nothing, or should hang up after its last message; never while `leaves_descriptors`."""
        if self.is_dropped:
            return not self.leaves_descriptors
        return not (self.asked or self.is_queued) or (self.is_told and self.cursor is None)

    @property
    def leaves_descriptors(self) -> bool:
        """Whether it may have left descriptors unread.

        The kernel counts them against the daemon's user until the peer reads them or hangs up. With too many, nobody
        gets any.
        """
        if not self._given:
            return False
        return any(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))

    def open(self, path: Path) -> None:
        """Gives the peer its line. While the line is made, its socket is at `path`.

        Raises:
            OSError: No descriptor is left, or the peer is gone (`BrokenPipeError`, `ConnectionResetError`).
        """
        self.line, theirs = open_line(path, TO_ANY_DAEMON if self.mismatch else TO_DAEMON)
        with theirs:
            self.give(theirs.fileno())

    def give(self, fd: int) -> int:
        """Gives the peer a descriptor; returns its number, for the message that names it.

        Raises:
            OSError: The peer is gone, or has left too many descriptors unread.
        """
        number, self._given = self._given, self._given + 1
        socket.send_fds(self.sock, [encode(Descriptor(number))], [fd], socket.MSG_NOSIGNAL)
        return number

    def send(self, message: Any) -> bool:
        """Sends `message` on the line; returns False if there is none, or if the peer has left too much unread."""
        return self.line is not None and self.line.send(message)

    def turn_away(self, refused: Refused) -> None:
        """Refuses a peer that has asked nothing; the caller then closes its connection."""
        with contextlib.suppress(OSError):
            self.sock.send(encode(refused), socket.MSG_NOSIGNAL)

    def hang_up(self) -> None:
        """Ends the lease on this side. The peer reads what it was given and then the end, and hangs up."""
        self.is_told = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def drop(self) -> None:
        """Ends the connection, and keeps only the socket that tells whether it `leaves_descriptors`."""
        self.is_told = self.is_dropped = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._close_others()

    def close(self) -> None:
        """Ends the lease and the line."""
        self.sock.close()
        self._close_others()

    def _close_others(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Listener:
    """Accepts peers at `path`, on `made` if that socket listens there already, else on a new one with this `door`."""

    def __init__(self, path: Path, door: Door, made: socket.socket | None = None) -> None:
        self._spare = -1  # a descriptor that `_turn_away` can close to have one for the client
        self._open_spare()
        if made is not None:
            self.sock = made
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self.sock.bind(os.fspath(path))
            door.apply_to(path)
            self.sock.listen(_BACKLOG)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Descriptor of the socket, readable when a client connects."""
        return self.sock.fileno()

    def accept(self) -> Peer | None:
        """The next peer, or None."""
        try:
            sock, _ = self.sock.accept()
        except OSError as e:  # mostly: the client is gone already
            if e.errno in NO_DESCRIPTOR:
                self._turn_away()
            return None
        try:
            return Peer(sock)
        except OSError:  # gone between connect and now
            sock.close()
            return None

    def _turn_away(self) -> None:
        """Accepts and refuses a connection with the spare descriptor: in the queue it would wake the loop for ever."""
        self._close_spare()
        try:
            with self.sock.accept()[0] as sock:
                sock.send(encode(OUT_OF_DESCRIPTORS), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError as e:  # mostly: the queue is empty, or the client is gone
            if e.errno in NO_DESCRIPTOR:
                time.sleep(_PAUSE_S)  # a thread or, for ENFILE, another process has taken the spare descriptor
        self._open_spare()

    def _open_spare(self) -> None:
        with contextlib.suppress(OSError):  # else the next call tries again
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _close_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def close(self) -> None:
        """Stops listening."""
        self.sock.close()
        self._close_spare()


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Pid and uid of the peer. The pid is 0 if the peer is in another PID namespace, out of this process's sight."""
    return _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[:2]


def peer_pidfd(sock: socket.socket) -> int:
    """A pidfd of the peer, which the caller closes; -1 if the kernel gives none."""
    with contextlib.suppress(OSError):
        return struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]  # type: ignore[no-any-return]
    with contextlib.suppress(OSError):
        # Before Linux 6.5. If the pid was reused after the connect, this watches another process, and only the end of
        # the connection ends the job.
        return os.pidfd_open(peer_of(sock)[0])
    return -1
