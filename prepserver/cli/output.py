"""Writes the file that a command's ``-o`` names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from prepserver.cli.exits import CommandError


def write_output(path: Path, content: bytes) -> None:
    """Writes to `path`, or to stdout if that is ``-``. If it fails, a file that was there stays, and no new one does.

    Raises:
        CommandError: It cannot be written.
    """
    if str(path) == "-":
        sys.stdout.buffer.write(content)
        return
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_bytes(content)
            return
        path = path.resolve()  # a link stays one
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as e:
        raise CommandError(f"-o {path}: {e.strerror}") from e
