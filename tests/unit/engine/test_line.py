"""Who may connect to an actor, and for how long it listens to others."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import SimpleNamespace

import pytest

from prepserver.engine import line
from prepserver.engine.line import TcpLine, TcpListener
from tests.support.waiting import PATIENCE_S

BYTES = 20  # fewer than a token has


def test_who_shows_a_token_byte_by_byte_is_sent_away_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds that 100 s have passed, in which one more byte came."""
    looks = 0

    def monotonic() -> float:
        nonlocal looks
        looks += 1
        if looks <= BYTES:
            other.sendall(b"a")
        return 100.0 * looks

    listener = TcpListener("127.0.0.1")
    with socket.create_connection(listener.address) as other:
        monkeypatch.setattr(line, "time", SimpleNamespace(monotonic=monotonic))
        monkeypatch.setattr(line, "_TOKEN_S", 900.0)
        monkeypatch.setattr(line, "_COME_S", 1e6)
        other.settimeout(PATIENCE_S)
        accepts = threading.Thread(target=lambda: listener.accept().close())
        accepts.start()
        with contextlib.suppress(ConnectionError):
            assert other.recv(1) == b""
        assert looks > BYTES
        TcpLine.to(listener.address, listener.token).close()
        accepts.join()
