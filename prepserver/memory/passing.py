"""Receives a message with the descriptors that came with it."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Sequence

from prepserver.protocol.codec import MAX_MESSAGE_BYTES

MAX_FDS = 4
CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # a plain number, because enumerations are slow
_FD_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FDS * _FD_BYTES)


def receive_with_fds(sock: socket.socket) -> tuple[bytes, list[int], int]:
    """One message of at most `MAX_MESSAGE_BYTES` + 1, its descriptors (the caller owns them), and recvmsg(2)'s flags.

    Descriptors are close-on-exec from the start: `socket.recv_fds` drops that flag in CPython 3.11, so every program
    that this process starts would inherit them.
    """
    try:
        data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE_BYTES + 1, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The peer ended without reading all. The kernel reports that once, before the peer's own last messages, which
        # can still be read.
        data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE_BYTES + 1, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % _FD_BYTES])
    return data, fds.tolist(), flags


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors that came with a message."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
