"""The folders below which sources may be read for users other than the server's own.

Roots that are URLs are not judged here: they hold for everybody, and `prepserver.source.storage.remote` checks them.

A path may lead elsewhere between a check and the opening, so what was opened is checked: the kernel says where it lies
(``/proc/self/fd``), with all links followed. Nothing outside is ever listed or read, even if somebody changes links
meanwhile. A link does reveal whether the folder that it leads to exists.

Hard links are not covered: the kernel lets a user make them only to files that this user may read and write
(``fs.protected_hardlinks``, on by default).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from prepserver.pipeline.urls import is_url
from prepserver.source.errors import SourceError, printable

# Without O_NONBLOCK, opening a FIFO waits for a writer that never comes.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class OutsideRootsError(SourceError):
    """The dataset, or a part of it, lies outside the roots."""


class Roots:
    """The folders below which sources may be read.

    Creating one accesses the file system, which may hang, so only workers and indexers do. Links in the absolute paths
    are followed; URLs are ignored. None allows every path.
    """

    def __init__(self, folders: Iterable[str] | None) -> None:
        self._are_all = folders is None
        self._named = tuple(folders or ())
        local = (folder for folder in self._named if not is_url(folder))
        self._real = tuple(os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/" for folder in local)

    def holds(self, real: bytes) -> bool:
        """Say whether a path without links is a root or lies below one."""
        return (real.rstrip(b"/") + b"/").startswith(self._real)

    def check_open(self, descriptor: int, what: str, path: str | bytes) -> None:
        """Check what was just opened; the `OutsideRootsError` names the path that the user gave, not where it leads."""
        if not (self._are_all or self.holds(_place(descriptor))):
            raise self._outside(what, path)

    def check_path(self, what: str, path: str | bytes) -> None:
        """Check a path that is not opened yet; 6 us.

        A missing path is judged by where it would be, so the answer reveals nothing about what exists outside. URLs are
        checked when they are read: see `prepserver.source.storage.remote.check_allowed`.

        Raises:
            OutsideRootsError: It leads outside.
        """
        if not (self._are_all or is_url(path) or self.holds(real_path(path))):
            raise self._outside(what, path)

    def _outside(self, what: str, path: str | bytes) -> OutsideRootsError:
        return OutsideRootsError(
            f"{what} {printable(os.fsdecode(path))} does not lie below the source roots of the server, the only "
            f"folders it reads for other users: {', '.join(self._named)}. Move the data below one of them, or have its "
            "folder added there (roots under [sources] in the server's --config, or --root)"
        )


ANYWHERE = Roots(None)


def real_path(path: str | bytes) -> bytes:
    """Return a path with all links followed; of a missing one, where it would be. 6 us."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(os.fsencode(path))
    try:
        return _place(descriptor)
    finally:
        os.close(descriptor)


def open_below(roots: Roots, what: str, path: str | bytes) -> int:
    """Open for reading what may turn out to be anything, without revealing what exists outside the roots.

    The error calls it `what`, such as "the shard". The caller owns the descriptor that is returned.

    Raises:
        OutsideRootsError: It lies outside the roots, or would if it existed.
        OSError: It cannot be opened.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        if is_url(path):
            raise OSError(errno.EOPNOTSUPP, "it must be a file of this machine, and is a URL") from None
        roots.check_path(what, path)
        raise
    try:
        roots.check_open(descriptor, what, path)
    except OutsideRootsError:
        os.close(descriptor)
        raise
    return descriptor


def _place(descriptor: int) -> bytes:
    # A file that was removed reads "... (deleted)"; the path before that still says where it was.
    return os.readlink(b"/proc/self/fd/%d" % descriptor)
