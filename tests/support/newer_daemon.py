"""``prepserver`` of the next release: a version and a protocol of its own, and more in each message.

Run as a script, with the arguments of the command line. ``$DIES`` names when a successor is killed: ``before`` it asks
the running daemon to leave, or ``after``.
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


def die(*_: Any) -> None:
    """As by the kernel."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    attach.encode = line.encode = encode_more
    if (dies := os.environ.get("DIES")) == "before":
        start.ask = die  # type: ignore[assignment]
    elif dies == "after":
        start.RuntimeDir.take = lambda place, patience_s=0.0: die() if patience_s else None  # type: ignore[method-assign]
    sys.exit(main())
