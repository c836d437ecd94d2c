"""Somebody at the daemon's sockets who follows no rules."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgpack
import zmq

from prepserver import __version__
from prepserver.pipeline.ops import Op, RandomResizedCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.sources import SourceSpec
from prepserver.protocol.codec import decode
from prepserver.protocol.messages import FROM_ATTACH, PROTOCOL, Fault, Ready, Refused
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S


class Stranger:
    """A connection to the attach socket.

    Args:
        server: Whose.
        uid: Connect as this user (as root only): the kernel notes who called connect.
        gid: And as a member of this group.
    """

    def __init__(self, server: Server, uid: int | None = None, gid: int | None = None) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if gid is not None:
            os.setegid(gid)
        if uid is not None:
            os.seteuid(uid)
        try:
            self.sock.connect(os.fspath(server.runtime_dir / "attach.sock"))  # waits while the queue is full
        finally:
            if uid is not None:
                os.seteuid(0)
            os.setegid(os.getgid())
        self.sock.settimeout(PATIENCE_S)

    def attach(self, source: SourceSpec, ops: Sequence[Op] = (RandomResizedCrop(32),)) -> dict[str, Any]:
        """The wire form of an honest question, to be spoilt."""
        return {
            "t": "Attach",
            "protocol": [PROTOCOL, PROTOCOL],
            "version": __version__,
            "job": "stranger",
            "source": source.to_wire(),
            "shuffle": "none",
            "seed": 0,
            "pipeline": Pipeline.from_ops(list(ops)).to_wire(),
            "batch_size": 4,
            "drop_last": False,
            "rank": 0,
            "world_size": 1,
        }

    def send(self, data: bytes) -> None:
        """As it is. The daemon may have hung up before."""
        self.sock.send(data)

    def send_map(self, message: Any) -> None:
        """As msgpack."""
        self.send(msgpack.packb(message))

    def receive(self) -> Any | None:
        """What the daemon says next (a descriptor that comes along is closed), None when it hangs up."""
        message, fds = self._receive()
        for fd in fds:
            os.close(fd)
        return message

    def welcomed(self) -> tuple[Any, int]:
        """The answer to an honest question, once the source is listed, and the socket of the control line."""
        while type((got := self._receive())[0]).__name__ == "Scanning":
            pass
        message, (segment, line) = got
        os.close(segment)
        return message, line

    def _receive(self) -> tuple[Any | None, list[int]]:
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, 1 << 17, 4)
        except ConnectionResetError:
            return None, []
        return decode(data, FROM_ATTACH) if data else None, list(fds)

    def close(self) -> None:
        """Hangs up."""
        self.sock.close()

    def __enter__(self) -> Stranger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Attached:
    """A client of ours that is attached and may say anything.

    Args:
        server: To which.
        source: What it asked for.
        uid: See `Stranger`.
        raw: Speak ZeroMQ's protocol by hand; `say` then sends bytes that libzmq would not.
        job: Its name.
    """

    def __init__(
        self, server: Server, source: SourceSpec, uid: int | None = None, *, raw: bool = False, job: str = "stranger"
    ) -> None:
        self.stranger = Stranger(server, uid)
        self.stranger.send_map({**self.stranger.attach(source), "batch_size": 20, "job": job})
        self.welcome, line = self.stranger.welcomed()
        self._raw: socket.socket | None = None
        if raw:
            self._raw = _shake_hands(line)
            return
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.USE_FD, line)
        self.socket.bind("ipc://line")

    def say(self, data: bytes) -> None:
        """Bytes on the control line.

        Raises:
            ConnectionError: The daemon has hung up.
        """
        assert self._raw is not None
        self._raw.sendall(data)

    def ended(self) -> bool:
        """Waits until the daemon hangs up; what it has announced before that is passed over."""
        while (last := self.stranger.receive()) is not None:
            assert isinstance(last, Ready | Fault | Refused)
        return True

    def close(self) -> None:
        """Hangs up."""
        if self._raw is not None:
            self._raw.close()
        else:
            self.socket.close(linger=1000)
            self._context.term()
        self.stranger.close()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shake_hands(line: int) -> socket.socket:
    """Takes the daemon's connection as a DEALER would (ZMTP 3.0)."""
    with socket.socket(fileno=line) as listener:
        listener.settimeout(PATIENCE_S)
        sock, _ = listener.accept()
    sock.settimeout(PATIENCE_S)
    sock.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    sock.sendall(bytes([4, len(ready)]) + ready)
    # ORDER: what is said before both sides are ready breaks the protocol.
    with sock.makefile("rb", buffering=0) as reader:
        left = 64 + 2
        while left:
            last = reader.read(left)
            left -= len(last)
        left = last[-1]
        while left:
            left -= len(reader.read(left))
    return sock
