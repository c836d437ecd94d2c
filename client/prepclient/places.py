"""Finds the daemon: which runtime directory, and whether one listens there."""

from __future__ import annotations

import os
from pathlib import Path

from prepserver.protocol.messages import ATTACH_SOCKET
from prepserver.protocol.places import runtime_dirs


def find_runtime_dir(given: str | os.PathLike[str] | None) -> Path:
    """The directory in which to look for a daemon.

    Args:
        given: By the caller; None means the usual places, of which the first with a socket is taken (or,
            if none has one, the first, so that an error can name it).
    """
    if given is not None:
        return Path(given).absolute()
    candidates = [Path(p) for p in runtime_dirs(os.environ, os.getuid())]
    for path in candidates:
        if _trusted(path) and os.path.lexists(path / ATTACH_SOCKET):
            return path
    return candidates[0]


def _trusted(path: Path) -> bool:
    """Whether `path` is a real directory of ours or of the system: anybody may put one under /tmp."""
    try:
        info = path.lstat()
    except OSError:
        return False
    return path.is_dir() and not path.is_symlink() and (path.parent != Path("/tmp") or info.st_uid == os.getuid())
