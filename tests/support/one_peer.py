"""The daemon's end of one client's lease and line, with real sockets, in the hands of a test."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from prepserver.daemon.attach import Listener, Peer
from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.messages import ATTACH_SOCKET, Attach, Welcome

T = TypeVar("T")


def leased(runtime_dir: Path, welcome: Welcome, ring: int, attach: Callable[[], T]) -> tuple[T, Peer]:
    """Both ends of a connection: what `attach` returns, and the other one.

    Args:
        runtime_dir: Where the socket is to be.
        welcome: The answer.
        ring: The descriptor that it names.
        attach: Asks in `runtime_dir`.
    """
    listener = Listener(runtime_dir / ATTACH_SOCKET, Door())
    peers: list[Peer] = []

    def answer() -> None:
        listener.sock.setblocking(True)
        peer = listener.accept()
        assert peer is not None
        peer.open(runtime_dir / "line.sock")
        assert isinstance(heard(peer), Attach)
        say_welcome(peer, welcome, ring)
        peers.append(peer)

    daemon = threading.Thread(target=answer)
    daemon.start()
    with contextlib.ExitStack() as on_error:
        on_error.callback(lambda: [peer.close() for peer in peers])
        try:
            asked = attach()
        finally:
            daemon.join()
            listener.close()
        on_error.pop_all()
    return asked, peers[0]


def heard(peer: Peer) -> Any:
    """What the client says next, None if it hangs up."""
    assert peer.line is not None
    while True:
        try:
            return peer.line.receive()
        except BlockingIOError:
            time.sleep(0.001)


def say_welcome(peer: Peer, welcome: Welcome, ring: int) -> None:
    """Sends the answer and its ring."""
    assert peer.send(replace(welcome, ring=peer.give(ring)))
