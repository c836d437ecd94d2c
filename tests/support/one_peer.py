"""The daemon's end of one lease, with a real socket, in the hands of a test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from prepserver.daemon.attach import Listener, Peer
from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.messages import ATTACH_SOCKET, Attach, Welcome

T = TypeVar("T")


def leased(runtime_dir: Path, welcome: Welcome, ring: int, attach: Callable[[], T]) -> tuple[T, Peer]:
    """Both ends of a lease: what `attach` returns, and the other one.

    Args:
        runtime_dir: Where the socket is to be.
        welcome: The answer.
        ring: The descriptor that goes with it, beside a control line to which nobody connects.
        attach: Asks in `runtime_dir`.
    """
    listener = Listener(runtime_dir / ATTACH_SOCKET, Door())
    peers: list[Peer] = []

    def answer() -> None:
        listener.sock.setblocking(True)
        peer = listener.accept()
        assert peer is not None
        peer.sock.setblocking(True)
        assert isinstance(peer.receive(), Attach)
        say_welcome(peer, welcome, ring)
        peers.append(peer)

    daemon = threading.Thread(target=answer)
    daemon.start()
    try:
        asked = attach()
    finally:
        daemon.join()
        listener.close()
    return asked, peers[0]


def say_welcome(peer: Peer, welcome: Welcome, ring: int) -> None:
    """Sends the answer with a ring, and with a control line to which nobody connects."""
    with socket.socket(socket.AF_UNIX) as line:
        line.bind("")
        line.listen()
        peer.send(welcome, ring, line.fileno())
