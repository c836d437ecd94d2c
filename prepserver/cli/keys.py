"""Single keys from the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator


@contextlib.contextmanager
def keys_at_once() -> Iterator[None]:
    """Delivers each key at once, and does not echo it. Does nothing if stdin is not a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def pressed(wait_s: float = 0.0) -> str | None:
    """The key that is pressed within `wait_s`; empty at the end of stdin, None without a key or a terminal."""
    if not sys.stdin.isatty() or not select.select([sys.stdin], [], [], wait_s)[0]:
        return None
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace")
