"""Somebody at the daemon's sockets who follows no rules."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgpack

from prepserver import __version__
from prepserver.pipeline.ops import Op, RandomResizedCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.sources import SourceSpec
from prepserver.protocol.codec import decode
from prepserver.protocol.messages import FROM_ATTACH, PROTOCOL
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S


class Stranger:
    """A connection to the attach socket.

    Args:
        server: Whose.
        uid: Connect as this user (as root only): the kernel notes who called connect.
    """

    def __init__(self, server: Server, uid: int | None = None) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(PATIENCE_S)
        if uid is not None:
            os.seteuid(uid)
        try:
            self.sock.connect(os.fspath(server.runtime_dir / "attach.sock"))
        finally:
            if uid is not None:
                os.seteuid(0)

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
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, 1 << 17, 4)
        except ConnectionResetError:
            return None
        for fd in fds:
            os.close(fd)
        return decode(data, FROM_ATTACH) if data else None

    def close(self) -> None:
        """Hangs up."""
        self.sock.close()

    def __enter__(self) -> Stranger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
