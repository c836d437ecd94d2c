"""The connection between the bridge and an actor: messages both ways, and rows that go from there into the rings.

A message is its length in four bytes, and then what `prepserver.protocol.codec` makes of it. After a `Filled` come the
rows of its task, lane by lane and field by field: both ends know how many bytes these are. A row is copied into the
kernel of one machine and out of the kernel of the other, and nowhere else.

The actor listens, so that the GPU machine opens no port. A peer that connects must first send a token, which the bridge
gets from the actor through Ray.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.schema import ProtocolError

_LENGTH = struct.Struct("<I")
_TOKEN_BYTES = 32
_CONNECT_S = 10.0
_TOKEN_S = 5.0
_COME_S = 60.0  # how long to wait for the bridge, which connects at once or not at all
_PROBE_S, _DEAD_S = 5, 20  # Ray itself takes about 15 s to find that a machine is gone

Address = tuple[str, int]

IN_RAY = ""  # replaces the path of the index file in an `AddStream`: the listing comes through Ray


class LineClosed(ConnectionError):
    """The other end is gone, or its machine."""


class TcpListener:
    """Waits for the bridge to connect; `host` is the address of this machine in the cluster."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, 0), family=family)
        self.address: Address = self._sock.getsockname()[:2]
        self.token = secrets.token_bytes(_TOKEN_BYTES)  # proves that a peer is the bridge

    def accept(self) -> TcpLine:
        """Waits for the bridge and then stops listening; raises `TimeoutError` if the bridge does not connect."""
        with contextlib.closing(self._sock):
            until_s = time.monotonic() + _COME_S
            while True:
                self._sock.settimeout(_left_s(until_s))
                sock, _ = self._sock.accept()
                if hmac.compare_digest(_token_from(sock), self.token):
                    return TcpLine(sock)
                sock.close()


class TcpLine:
    """One end of a connection, which owns its socket. One thread may send while another receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock

    @classmethod
    def to(cls, address: Address, token: bytes) -> TcpLine:
        """Connects to a `TcpListener`; raises `OSError` if that fails."""
        sock = socket.create_connection(address, _CONNECT_S)
        try:
            # A machine that lost power sends nothing: the kernel probes it, and gives up after a while.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_S * 1000)
            sock.sendall(token)
        except OSError:
            sock.close()
            raise
        return cls(sock)

    def fileno(self) -> int:
        """Descriptor of the socket, for poll."""
        return self._sock.fileno()

    def send(self, message: Any, rows: Iterable[npt.NDArray[Any]] = ()) -> None:
        """Sends a message and the rows that belong to it; raises `LineClosed`."""
        data = encode(message)
        self._send(_LENGTH.pack(len(data)) + data)
        for each in rows:
            self.send_rows(each)

    def send_rows(self, rows: npt.NDArray[Any]) -> None:
        """Sends the bytes of an array, C-contiguous; raises `LineClosed`."""
        self._send(_bytes(rows))

    def _send(self, data: bytes | memoryview) -> None:
        try:
            self._sock.sendall(data)
        except OSError as e:
            raise LineClosed(str(e)) from e

    def receive(self, allowed: Mapping[str, type]) -> Any:
        """The next message.

        Raises:
            LineClosed: There will be none.
            ProtocolError: Not one of `allowed`.
        """
        (length,) = _LENGTH.unpack(self._exactly(bytearray(_LENGTH.size)))
        if length > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {length} bytes; the limit is {MAX_MESSAGE_BYTES}")
        return decode(bytes(self._exactly(bytearray(length))), allowed)

    def receive_rows(self, into: npt.NDArray[Any]) -> int:
        """Fills `into`, C-contiguous, with received bytes; returns their number, or raises `LineClosed`."""
        return len(self._exactly(_bytes(into)))

    def _exactly(self, into: Any) -> Any:
        view, done = memoryview(into), 0
        while done < len(view):
            try:
                count = self._sock.recv_into(view[done:], flags=socket.MSG_WAITALL)
            except OSError as e:
                raise LineClosed(str(e)) from e
            if not count:
                raise LineClosed("end of file")
            done += count
        return into

    def hang_up(self) -> None:
        """Ends the sending and receiving of another thread.

        If the descriptor were closed instead, that thread could go on to read from a new file with the same number.
        """
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hangs up and closes the descriptor; a second call does nothing. Not while another thread uses it."""
        self.hang_up()
        self._sock.close()


def _token_from(sock: socket.socket) -> bytes:
    """The token that a new peer sends; shorter if it stops early."""
    token = bytearray()
    until_s = time.monotonic() + _TOKEN_S
    with contextlib.suppress(OSError):
        while len(token) < _TOKEN_BYTES:
            sock.settimeout(_left_s(until_s))
            if not (more := sock.recv(_TOKEN_BYTES - len(token))):
                break
            token += more
    return bytes(token)


def _left_s(until_s: float) -> float:
    return max(0.001, until_s - time.monotonic())  # 0 would make the socket non-blocking


def _bytes(rows: npt.NDArray[Any]) -> memoryview:
    return rows.reshape(-1).view(np.uint8).data
