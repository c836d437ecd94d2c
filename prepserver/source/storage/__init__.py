"""Where the bytes of a dataset lie: files of this machine, or objects on the network. Readers do not know which.

To list a dataset, `open_file` opens anything by its path, and `statuses` tells whether a listing is out of date.
Samples are read by `prepserver.source.files` and `prepserver.source.shards`: local ones by one system call each, remote
ones by reads that began before they were needed (`prepserver.source.storage.remote`).
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
from collections.abc import Sequence
from typing import Any, Protocol

from prepserver.pipeline.urls import is_url
from prepserver.source.roots import Roots, open_below
from prepserver.source.storage import remote


class File(Protocol):
    """An open file, for listing.

    Attributes:
        size: Bytes.
        version: Another number when the content is another: the time of a local file in nanoseconds; a hash of the
            entity tag of an object.
    """

    size: int
    version: int

    def read(self, length: int, offset: int) -> bytes:
        """Return a range, which is shorter if the file ends inside it. Ranges in ascending order are cheap.

        Raises:
            OSError: It cannot be read, or has changed.
        """

    def whole(self) -> mmap.mmap | bytes:
        """Return all of its content; raises as `read`."""

    def close(self) -> None:
        """Release it."""


class _LocalFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.size, self.version = status.st_size, status.st_mtime_ns
        self.is_regular = stat.S_ISREG(status.st_mode)

    def read(self, length: int, offset: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def whole(self) -> mmap.mmap | bytes:
        return mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ) if self.size else b""

    def close(self) -> None:
        os.close(self._descriptor)


def open_file(roots: Roots | None, what: str, path: str) -> File:
    """Open a file for listing.

    Args:
        roots: Where a local file must lie. A URL must lie below those that the configuration names, in any case.
        what: What the error calls it, such as "the shard".
        path: Absolute path, or a URL.

    Raises:
        OutsideRootsError: It lies outside.
        OSError: It cannot be opened, or is no regular file.
    """
    if is_url(path):
        return remote.RemoteFile(path)
    file = _LocalFile(open_below(roots, what, path))
    if not file.is_regular:
        file.close()
        raise OSError(errno.EINVAL, "it is not a file")
    return file


class _Stream(io.RawIOBase):
    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = self._file.read(len(into), self._at)
        into[: len(data)] = data
        self._at += len(data)
        return len(data)


def stream(file: File) -> io.BufferedReader:
    """Return a file as Python reads one from begin to end."""
    return io.BufferedReader(_Stream(file), 1 << 16)


def names(folder: str) -> list[str]:
    """Return the names in a folder; of objects only, if it is a URL.

    Raises:
        OutsideRootsError: It is a URL that the configuration does not name.
        OSError: It cannot be listed.
    """
    return [each.path for each in remote.children(folder)[1]] if is_url(folder) else os.listdir(folder)


def statuses(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Return size and version of each file; all are local, or all are remote.

    Raises:
        OutsideRootsError: It lies outside.
        OSError: One is gone, or cannot be asked for.
    """
    if paths and is_url(paths[0]):
        return remote.statuses(paths)
    return [(status.st_size, status.st_mtime_ns) for status in map(os.stat, paths)]
