"""Files of this machine, or objects on the network: readers do not know where the bytes of a dataset lie.

Listing opens anything by its path (`open_file`), and `statuses` shows whether a listing is out of date. Samples are
read by `prepserver.source.files` and `prepserver.source.shards`: local ones by one system call each, remote ones by
reads that began before they were needed (`prepserver.source.storage.remote`).
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from prepserver.pipeline.urls import is_url
from prepserver.source.errors import unusable
from prepserver.source.roots import Roots, open_below
from prepserver.source.storage import remote, remote_files

T = TypeVar("T")


class File(Protocol):
    """An open file, for listing."""

    size: int  # bytes
    version: int  # changes with the content: a local file's time in ns, or a hash of an object's entity tag

    def read(self, length: int, offset: int) -> bytes:
        """Return a range, which is shorter if the file ends inside it. Ranges in ascending order are cheap.

        Raises:
            OSError: It cannot be read, or has changed.
        """

    def whole(self) -> mmap.mmap | bytes:
        """Return the whole content; raises as `read`."""

    def close(self) -> None:
        """Release it."""


class _LocalFile:
    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.size, self.version = status.st_size, status.st_mtime_ns
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(errno.EINVAL, f"it is not a regular file; of a folder, name the files, such as {path}/*")

    def read(self, length: int, offset: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def whole(self) -> mmap.mmap | bytes:
        return mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ) if self.size else b""

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def open_file(roots: Roots, what: str, path: str) -> Iterator[File]:
    """Open a file for listing, and close it at the end of the block; errors call it `what`, such as "the list".

    A local file must lie in the roots. A URL must lie below those that the configuration names, in any case.

    Raises:
        OutsideRootsError: It lies outside.
        SourceError: It cannot be opened, is not a regular file, or the block raised an `OSError`.
    """
    try:
        file = remote_files.RemoteFile(path) if is_url(path) else _LocalFile(open_below(roots, what, path), path)
        with contextlib.closing(file):
            yield file
    except OSError as error:
        raise unusable(what, path, error) from error


class Stream(io.RawIOBase):
    """A Python file object of `size` bytes over a function such as `File.read`, whose errors pass through."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size = read, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        data = self._read(left if size is None or size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data

    def readinto(self, into: Any) -> int:
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)


def stream(file: File) -> io.BufferedReader:
    """Return an open file as a Python file object."""
    return io.BufferedReader(Stream(file.read, file.size), 1 << 16)


def names(folder: str) -> list[str]:
    """Return the names in a folder, of a URL those of objects; raises `OSError`, or `OutsideRootsError` for a URL."""
    return [each.path for each in remote_files.children(folder)[1]] if is_url(folder) else os.listdir(folder)


def versions(paths: Sequence[str]) -> list[int]:
    """Return the version of each file, 0 for one that cannot be read; all are local, or all are remote.

    Raises:
        OutsideRootsError: It lies outside.
    """

    def version(path: str) -> int:
        try:
            return _status(path)[1]
        except OSError:
            return 0

    return _each(version, paths)


def statuses(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Return (size, version) of each file; raises `OSError` if one is gone, or its store does not answer."""
    return _each(_status, paths)


def _status(path: str) -> tuple[int, int]:
    if not is_url(path):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    try:
        return remote.link().status(path)
    except remote.RemoteError as error:
        raise remote.RemoteError(f"{path}: {error.reason}") from None


def _each(ask: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    return remote.link().each(ask, paths) if paths and is_url(paths[0]) else list(map(ask, paths))
