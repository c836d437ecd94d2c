"""The control channel: one ZeroMQ ROUTER over ipc, msgpack messages, positions only.

A client's routing id is a random token that it got over the attach socket, and its first message must come
from the process that attached. Nothing can pile up: a client has at most one unread announcement per batch
of its ring, far below the high-water mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.messages import TO_CONTROL
from prepserver.protocol.schema import ProtocolError

_MOST_AT_ONCE = 256
_HIGH_WATER = 10_000
_POLLIN = int(zmq.POLLIN)  # a plain number: an enumeration's member takes a microsecond to compare with


class Received(NamedTuple):
    """A message on the control channel.

    Attributes:
        token: Routing id of the sender.
        uid: Of the sender's process, by the kernel.
        pid: Of the sender's process, by the kernel.
        message: What it says, or what is wrong with it.
    """

    token: bytes
    uid: int
    pid: int
    message: Any | ProtocolError


class Control:
    """The daemon's end.

    Args:
        path: Of the ipc socket.
        door: Who may connect to it, where the directory lets them pass.

    Attributes:
        is_due: Whether something may have arrived that no poll will tell of: `receive` before the next one.
    """

    def __init__(self, path: Path, door: Door) -> None:
        self.is_due = True
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to nobody is an error, not a silent drop
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        self._socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        try:
            self._socket.bind(f"ipc://{path}")
            door.hang(path)
        except (zmq.ZMQError, OSError):
            self.close()
            raise

    def fileno(self) -> int:
        """Edge-triggered, and a send may swallow the edge: `receive` when `is_due`, until it ends."""
        return int(self._socket.getsockopt(zmq.FD))

    def fired(self) -> None:
        """Its descriptor is readable."""
        self.is_due = True

    def receive(self) -> Iterator[Received]:
        """What has arrived, up to `_MOST_AT_ONCE`: then it is due again, after others had their turn."""
        self.is_due = False
        left = _MOST_AT_ONCE
        # Asked first: it is mostly nothing, and an exception that says so costs several times as much.
        while int(self._socket.getsockopt(zmq.EVENTS)) & _POLLIN:
            if left == 0:
                self.is_due = True
                return
            left -= 1
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            token = bytes(frames[0].buffer)
            uid, pid = _sender(frames[-1])
            message: Any
            if len(frames) != 2:
                message = ProtocolError(f"a message of {len(frames) - 1} parts; one is expected")
            else:
                try:
                    message = decode(frames[1].buffer, TO_CONTROL)
                except ProtocolError as e:
                    message = e
            yield Received(token, uid, pid, message)

    def send(self, token: bytes, message: Any) -> bool:
        """Sends to one client; False if it is not connected (it will ask when it is)."""
        self.is_due = True
        try:
            self._socket.send_multipart([token, encode(message)], zmq.DONTWAIT)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Closes the socket and its io thread."""
        self._socket.close(linger=0)
        self._context.term()


def _sender(frame: zmq.Frame) -> tuple[int, int]:
    """(uid, pid) that the kernel gave libzmq for this ipc connection: ``Peer-Address`` is name:uid:gid:pid."""
    try:
        _, uid, _, pid = str(frame.get("Peer-Address")).rsplit(":", 3)
        return int(uid), int(pid)
    except (zmq.ZMQError, ValueError):
        return -1, -1
