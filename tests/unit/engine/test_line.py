"""Who may connect to an actor, and for how long it listens to others."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from prepserver.engine.line import TcpLine, TcpListener

DROPS = 30  # fewer than a token has bytes


def test_who_shows_a_token_byte_by_byte_is_sent_away_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepserver.engine.line._TOKEN_S", 0.2)
    listener = TcpListener("127.0.0.1")
    dropped = 0
    with socket.create_connection(listener.address) as other:
        accepts = threading.Thread(target=lambda: listener.accept().close())
        accepts.start()
        with contextlib.suppress(ConnectionError):
            for _ in range(DROPS):
                other.sendall(b"a")
                dropped += 1
                time.sleep(0.05)
        monkeypatch.undo()  # whoever follows the rules may be slow
        TcpLine.to(listener.address, listener.token).close()
        accepts.join()
    assert dropped < DROPS
