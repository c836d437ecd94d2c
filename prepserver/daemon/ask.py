"""Asks a running daemon one question, as `prepserver status` does: over a lease and a line, but without libzmq."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepserver.daemon.line import Line
from prepserver.memory.passing import receive_with_fds
from prepserver.protocol.codec import decode
from prepserver.protocol.messages import (
    FROM_DAEMON,
    FROM_LEASE,
    AskLogs,
    AskStatus,
    AskStop,
    Descriptor,
    Logs,
    Refused,
    Status,
)
from prepserver.protocol.schema import ProtocolError
from prepserver.protocol.versions import hello, too_old


def ask(
    attach_socket: Path, question: AskStatus | AskStop | AskLogs, timeout_s: float,
    meet: Callable[[socket.socket], None] = lambda _line: None,
) -> Any:  # fmt: skip
    """Sends `question` and waits for the answer.

    `meet` is called before that with the line, whose peer is the daemon; that of the lease may be a service manager.

    Returns:
        The answer: for `AskStatus` the state as a dict, for `AskLogs` the bytes of each file by name; or `Refused`.

    Raises:
        OSError: No daemon listens at `attach_socket`, or it hangs up, or does not answer (`TimeoutError`).
        ValueError: The answer is malformed.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as lease:
        # With a timeout of Python's own, connect would not wait while the daemon's queue is full.
        whole_s, rest_us = divmod(max(1, round(timeout_s * 1e6)), 10**6)  # 0 would be no deadline
        lease.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole_s, rest_us))
        lease.connect(os.fspath(attach_socket))
        lease.settimeout(timeout_s)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has hung up, but may have said why
            lease.send(hello())
        given, fd = _given(lease)
        if isinstance(given, Refused):
            return Refused("protocol", too_old(given.text)) if given.code == "protocol" else given
        with socket.socket(fileno=fd) as listener:
            listener.settimeout(timeout_s)
            sock, _ = listener.accept()
        with sock:
            meet(sock)
            sock.settimeout(timeout_s)
            line = Line(sock, FROM_DAEMON)
            line.send(question)
            answer = line.receive()
        if answer is None:
            answer = _given(lease)[0]
        if isinstance(answer, Status):
            with open(_given(lease)[1], "rb") as memory:
                return json.loads(os.pread(memory.fileno(), answer.nbytes, 0))  # the daemon has moved its offset
        if isinstance(answer, Logs):
            return {name: _read(_given(lease)[1]) for name in answer.names}
        return answer


def _read(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return file.read()


def _given(lease: socket.socket) -> tuple[Descriptor | Refused, int]:
    data, fds, _ = receive_with_fds(lease)
    if not data:
        raise ConnectionError("the daemon hung up")
    given = decode(data, FROM_LEASE)
    if isinstance(given, Descriptor) and not fds:
        raise ProtocolError("a descriptor is missing")
    return given, fds[0] if fds else -1
