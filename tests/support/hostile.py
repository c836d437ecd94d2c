"""Somebody at the daemon's sockets who follows no rules."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgpack

from prepserver import __version__
from prepserver.daemon.line import Line
from prepserver.pipeline.ops import Op, RandomResizedCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.sources import SourceSpec
from prepserver.protocol import zmtp
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.messages import FROM_DAEMON, FROM_LEASE, Descriptor, Hello
from prepserver.protocol.versions import PROTOCOL
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S


class Stranger:
    """A connection to the attach socket, and the line that comes with it once it is spoken on.

    Args:
        server: Whose.
        uid: Connect as this user (as root only): the kernel notes who called connect.
        gid: And as a member of this group.
        hello: What it says first.

    Attributes:
        sock: The lease.
        said: The line, once it is spoken on.
        fds: Descriptors that came with it, by number, but for the line's.
    """

    def __init__(
        self, server: Server, uid: int | None = None, gid: int | None = None,
        *, hello: Any = Hello(PROTOCOL, __version__),  # noqa: B008 - frozen
    ) -> None:  # fmt: skip
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
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has hung up already
            self.sock.send(encode(hello))
        self.fds: dict[int, int] = {}
        self.said: socket.socket | None = None
        self._line: Line | None = None

    def attach(self, source: SourceSpec, ops: Sequence[Op] = (RandomResizedCrop(32),)) -> dict[str, Any]:
        """The wire form of an honest question, to be spoilt."""
        return {
            "t": "Attach",
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
        """A message as it is."""
        self.say(zmtp.frame(data))

    def send_map(self, message: Any) -> None:
        """A message as msgpack."""
        self.send(msgpack.packb(message))

    def say(self, data: bytes) -> None:
        """Bytes on the line, which need be no message.

        Raises:
            ConnectionError: The daemon has hung up.
        """
        if self.said is None:
            assert self._read_lease() is None
        assert self.said is not None
        self.said.sendall(data)

    def receive(self) -> Any | None:
        """What the daemon says next, on the lease or the line; None when it hangs up."""
        poll = select.poll()
        while True:
            for sock in filter(None, (self.sock, self.said)):
                poll.register(sock, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(PATIENCE_S * 1000)}
            assert ready, "the daemon says nothing"
            if self.sock.fileno() in ready:  # first: why there is no line any more
                if (said := self._read_lease()) is not None:
                    return said or None
            elif self._line is not None:
                with contextlib.suppress(BlockingIOError):
                    if (message := self._line.receive()) is not None:
                        return message
                    return self._read_lease() or None  # why

    def _read_lease(self) -> Any | None:
        """Takes a descriptor and returns None, or the refusal in its place; False at the end of the lease."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, 1 << 17, 4)
        except ConnectionResetError:  # the daemon has hung up without reading; what it said comes next
            data, fds, _, _ = socket.recv_fds(self.sock, 1 << 17, 4)
        if not data:
            return False
        message = decode(data, FROM_LEASE)
        if not isinstance(message, Descriptor):
            return message
        (fd,) = fds
        if message.number:
            self.fds[message.number] = fd
            return None
        with socket.socket(fileno=fd) as listener:
            listener.settimeout(PATIENCE_S)
            self.said, _ = listener.accept()
        self.said.settimeout(PATIENCE_S)
        quiet = self.said.dup()  # with a timeout of its own
        quiet.setblocking(False)
        self._line = Line(quiet, FROM_DAEMON)
        return None

    def welcomed(self) -> Any:
        """The answer to an honest question, once the source is listed."""
        while type(message := self.receive()).__name__ == "Scanning":
            pass
        return message

    def ended(self) -> bool:
        """Waits until the daemon refuses to continue, or hangs up; skips earlier announcements."""
        while (said := self.receive()) is not None and type(said).__name__ != "Refused":
            assert type(said).__name__ == "Ready"
        return True

    def close(self) -> None:
        """Hangs up."""
        self.sock.close()
        if self.said is not None and self._line is not None:
            self.said.close()
            self._line.close()
        while self.fds:
            os.close(self.fds.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Attached(Stranger):
    """A client of ours that is attached and may say anything.

    Args:
        server: To which.
        source: What it asked for.
        uid: See `Stranger`.
        job: Its name.
    """

    def __init__(self, server: Server, source: SourceSpec, uid: int | None = None, *, job: str = "stranger") -> None:
        super().__init__(server, uid)
        self.send_map({**self.attach(source), "batch_size": 20, "job": job})
        self.welcome = self.welcomed()
