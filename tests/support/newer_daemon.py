"""``prepserver`` of the next release: a version and a protocol of its own, and more in each message.

Run as a script, never imported, with the arguments of the command line. With ``$DIES``, a successor is killed when the
running daemon leaves, before it has the lock.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgpack

import prepserver

prepserver.__version__ = "99.0"  # before anything imports it

from prepserver.protocol import versions  # noqa: E402

versions.PROTOCOL += 1

from prepserver.cli import main, start  # noqa: E402
from prepserver.daemon import attach, line  # noqa: E402
from prepserver.protocol.codec import encode  # noqa: E402
from prepserver.protocol.schema import Grows  # noqa: E402


def encode_more(message: Any) -> bytes:
    """A message with a field that this release does not know."""
    data = encode(message)
    return bytes(msgpack.packb({**msgpack.unpackb(data), "later": {"new": 1}})) if isinstance(message, Grows) else data


def die() -> None:
    """As by the kernel."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    for room in (attach, line):
        vars(room)["encode"] = encode_more
    if "DIES" in os.environ:
        vars(start)["RuntimeDir"].take = lambda _place, patience_s=0.0: die() if patience_s else None
    sys.exit(main())
