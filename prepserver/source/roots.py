"""Which part of the file system a source may be read from, for users whom the server's user is not.

The question is never put to a path: what a path means can change between the question and the opening. It is put
to what was opened, by asking the kernel where that lies (``/proc/self/fd``), after all links were followed. So
nothing outside is ever listed or read, whatever somebody does to links meanwhile. What a link shows nevertheless
is whether there is a folder behind it.

Hard links are beyond this: the kernel lets a user make them only to files that this user may read and write
(``fs.protected_hardlinks``, on by default).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from prepserver.source.errors import SourceError, printable

# Without O_NONBLOCK, opening a FIFO waits for a writer that never comes.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class OutsideRootsError(SourceError):
    """The dataset, or a part of it, lies outside the roots."""


class Roots:
    """The folders below which sources may be read.

    Looks at the file system once, here: storage may hang, so only workers and indexers make one.

    Args:
        folders: Absolute paths; links in them are followed.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self._named = tuple(folders)
        self._real = tuple(os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/" for folder in self._named)

    def holds(self, real: bytes) -> bool:
        """Whether a path without links is a root or lies below one."""
        return (real.rstrip(b"/") + b"/").startswith(self._real)

    def check_open(self, descriptor: int, what: str, path: str | bytes) -> None:
        """Checks what was just opened.

        Args:
            descriptor: Of it.
            what: The thing, such as "the folder", for the error.
            path: As the user named it, for the error. Where it leads to is not told: that is not the user's
                to know.

        Raises:
            OutsideRootsError: It lies outside.
        """
        if not self.holds(_place(descriptor)):
            raise self._outside(what, path)

    def check_path(self, what: str, path: str | bytes) -> None:
        """Checks a path for which nothing is to be opened yet; 6 us.

        What is missing is judged by where it would be, so that the answer tells nothing of what there is outside.

        Raises:
            OutsideRootsError: It leads outside.
        """
        if not self.holds(real_path(path)):
            raise self._outside(what, path)

    def _outside(self, what: str, path: str | bytes) -> OutsideRootsError:
        return OutsideRootsError(
            f"{what} {printable(os.fsdecode(path))} does not lie below the source roots of the server, from which "
            f"alone it reads for other users: {', '.join(self._named)}. Move the data below one of them, or have its "
            "folder added there (roots under [sources] in the server's --config, or --root)"
        )


def real_path(path: str | bytes) -> bytes:
    """Where a path leads, links followed; if there is nothing, where it would be. 6 us."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(os.fsencode(path))
    try:
        return _place(descriptor)
    finally:
        os.close(descriptor)


def open_below(roots: Roots | None, what: str, path: str | bytes) -> int:
    """Open for reading what may turn out to be anything; whether something is there outside is not told.

    Args:
        roots: Where it must lie; None for anywhere.
        what: The thing, such as "the shard", for the error.
        path: Where.

    Returns:
        A descriptor.

    Raises:
        OutsideRootsError: It lies outside, or would if it were there.
        OSError: It cannot be opened.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        if roots is not None:
            roots.check_path(what, path)
        raise
    if roots is not None:
        try:
            roots.check_open(descriptor, what, path)
        except OutsideRootsError:
            os.close(descriptor)
            raise
    return descriptor


def _place(descriptor: int) -> bytes:
    # A file that was removed meanwhile reads "... (deleted)": its beginning still says where it was.
    return os.readlink(b"/proc/self/fd/%d" % descriptor)
