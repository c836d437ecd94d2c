from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from prepserver.daemon.ask import ask
from prepserver.daemon.attach import Listener
from prepserver.daemon.runtime_dir import Door
from prepserver.protocol.messages import ATTACH_SOCKET, AskStatus


@pytest.mark.parametrize("timeout_s", [0.0, 0.05])
def test_a_full_queue_is_waited_for_no_longer_than_asked(short_path: Path, timeout_s: float) -> None:
    """Fractions of a second count, too; without any, the kernel would wait for ever."""
    path = short_path / ATTACH_SOCKET
    with Listener(path, Door()).sock as daemon, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        daemon.listen(0)  # a queue of one
        other.connect(os.fspath(path))
        with pytest.raises(BlockingIOError):
            ask(path, AskStatus(), timeout_s)
