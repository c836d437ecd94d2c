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
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from prepserver.pipeline.urls import is_url
from prepserver.source.roots import Roots, open_below
from prepserver.source.storage import remote, remote_files


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
        return remote_files.RemoteFile(path)
    file = _LocalFile(open_below(roots, what, path))
    if not file.is_regular:
        file.close()
        raise OSError(errno.EINVAL, f"it is not a file; name its files, such as {path}/*")
    return file


class Stream(io.RawIOBase):
    """A file as Python reads one.

    Args:
        read: Returns a range by length and offset, as `File.read`.
        size: Bytes of the file.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size = read, size
        self._at = 0

    def readable(self) -> bool:
        """As of any file."""
        return True

    def seekable(self) -> bool:
        """As of any file."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """As of any file."""
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """As of any file; raises as `File.read`."""
        left = max(0, self._size - self._at)
        data = self._read(left if size is None or size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data

    def readinto(self, into: Any) -> int:
        """As of any file; raises as `File.read`."""
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)


def stream(file: File) -> io.BufferedReader:
    """Return an open file as Python reads one."""
    return io.BufferedReader(Stream(file.read, file.size), 1 << 16)


def names(folder: str) -> list[str]:
    """Return the names in a folder; of objects only, if it is a URL.

    Raises:
        OutsideRootsError: It is a URL that the configuration does not name.
        OSError: It cannot be listed.
    """
    return [each.path for each in remote_files.children(folder)[1]] if is_url(folder) else os.listdir(folder)


def versions(paths: Sequence[str]) -> list[int]:
    """Return the version of each file, 0 for one that cannot be had; all are local, or all are remote.

    Raises:
        OutsideRootsError: It lies outside.
    """

    def version(path: str) -> int:
        try:
            return remote.link().status(path)[1] if is_url(path) else os.stat(path).st_mtime_ns
        except OSError:
            return 0

    return remote.link().each(version, paths) if paths and is_url(paths[0]) else list(map(version, paths))


def statuses(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Return size and version of each file; all are local, or all are remote.

    Raises:
        OutsideRootsError: It lies outside.
        OSError: One is gone, or cannot be asked for.
    """
    if paths and is_url(paths[0]):
        return remote_files.statuses(paths)
    return [(status.st_size, status.st_mtime_ns) for status in map(os.stat, paths)]
