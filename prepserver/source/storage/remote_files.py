"""Objects as listings see them: open files, their versions, and the folders of a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prepserver.pipeline.urls import split
from prepserver.source.storage.remote import RemoteRead, link, version_of

_WINDOW_BYTES = 8 << 20  # a listing reads 100 MB/s at 50 ms with this, from one file
_LOOK_BYTES = 64 << 10


class RemoteFile:
    """A `File` that is an object.

    Reads in sequence, or with small gaps, get windows of the file, so a listing costs few requests. A read far from the
    one before it asks for little more than its range.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._link = link()
        self.size, self.version = self._link.status(url)
        self._window, self._at = b"", 0

    def read(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        ends = self._at + len(self._window)
        if not self._at <= offset <= end <= ends:
            least = _WINDOW_BYTES if 0 <= offset - ends <= _WINDOW_BYTES else _LOOK_BYTES
            self._window, self._at = b"", offset  # ORDER: the old window is freed before the new one arrives
            span = min(max(length, least), self.size - offset)
            self._window = self._link.get(self._part(offset, span))
        return self._window[offset - self._at : end - self._at]

    def whole(self) -> bytes:
        begin = b"" if self._at else self._window
        starts = range(len(begin), self.size, _WINDOW_BYTES)
        parts = (self._part(start, min(_WINDOW_BYTES, self.size - start)) for start in starts)
        return b"".join((begin, *self._link.each(self._link.get, parts)))

    def close(self) -> None:
        self._window = b""

    def _part(self, offset: int, length: int) -> RemoteRead:
        return RemoteRead(self._url, offset, length, self.size, self.version)


class Entry(NamedTuple):
    """An object: its path below the folder, its size in bytes, and its `version_of`."""

    path: str
    size: int
    version: int


def children(url: str) -> tuple[list[str], list[Entry]]:
    """Return the names of the folders in a folder, and its objects; raises as `Link.listed`."""
    ((folders, objects),) = link().listed(url, deep=False)
    cut = _below(url)
    return [folder.rstrip("/")[cut:] for folder in folders], [_entry(each, cut) for each in objects]


def descendants(url: str) -> Iterator[list[Entry]]:
    """Yield all objects below a folder, part by part; raises as `Link.listed`."""
    cut = _below(url)
    for _, objects in link().listed(url, deep=True):
        yield [_entry(each, cut) for each in objects]


def _below(url: str) -> int:
    key = split(url)[1]
    return len(key) + 1 if key else 0


def _entry(meta: Mapping[str, Any], cut: int) -> Entry:
    return Entry(meta["path"][cut:], meta["size"], version_of(meta))
