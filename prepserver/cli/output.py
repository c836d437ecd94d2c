"""Writes the file that a command's ``-o`` names."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path

from prepserver.cli.exits import CommandError


def write_output(path: Path, content: bytes) -> None:
    """Writes to `path`, or to stdout if that is ``-``. If it fails, a file that was there stays, and no new one does.

    A file that was there keeps its owner and mode. Where its folder cannot be written to, it is written in place.

    Raises:
        CommandError: It cannot be written.
    """
    if str(path) == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    real = Path(os.path.realpath(path))  # a link stays one
    try:
        was = real.stat() if real.exists() else None
        if was is not None and not (stat.S_ISREG(was.st_mode) and os.access(real.parent, os.W_OK)):
            real.write_bytes(content)  # a pipe or a device, or there is no room beside it
            return
        # A name that nobody can guess: others may write to the folder.
        fd, unfinished = tempfile.mkstemp(prefix=".prepserver-", dir=real.parent)
        try:
            with open(fd, "wb") as file:
                file.write(content)
                _like(was, file.fileno())
            os.replace(unfinished, real)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise
    except OSError as e:
        raise CommandError(f"-o {path}: {e.strerror}") from e


def _like(was: os.stat_result | None, fd: int) -> None:
    """Gives a new file the owner and mode of the one that it replaces, or the usual mode."""
    if was is None:
        os.umask(mask := os.umask(0))
        os.fchmod(fd, 0o666 & ~mask)
        return
    if (was.st_uid, was.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):
            os.fchown(fd, was.st_uid, was.st_gid)
    os.fchmod(fd, stat.S_IMODE(was.st_mode))
