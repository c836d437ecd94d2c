"""A cache as workers and the daemon see it: a table of words, and the entries that the words point to.

It holds a page of numbers, counters for each worker's seat, one 8-byte word for each sample, then extents of entries. A
worker takes an extent for itself, writes an entry there, and publishes it by one aligned 8-byte write of the sample's
word. So readers see an entry whole or not at all, even if its worker is killed, and take no lock. Two workers that
write the same sample write the same record; the second word replaces the first.

Extents are taken under a file lock, a few times a second at most. The kernel gives a dead worker's lock back, and a
worker never waits for it: it does without the cache for that sample.

Entries are written by pwrite. A cache in memory is mapped read-only, so a decoder that goes astray cannot damage it. A
cache on disk is read by pread and its checksums are compared: a full disk, a bad one and a file that somebody cut are
errors here, and would kill a process that had mapped the file.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from prepserver.cache import entry
from prepserver.cache.entry import ALIGNED, Damaged
from prepserver.memory.errors import SegmentError
from prepserver.memory.mapping import MemoryMap

_MAGIC = b"prepche1"
_PAGE = 4096
_NUMBERS = struct.Struct("<8sQQ32s")  # magic, samples, bytes of an extent, what the cache is of
_TAKEN, _LIMIT = 10, 11  # words of the first page: extents that are taken, and that may be
_SEATS, _SEAT_WORDS = 1024, 8
_TABLE = _PAGE + _SEATS * _SEAT_WORDS * 8
_HITS, _MISSES, _ROWS, _BYTES, _BAD = range(5)

_LENGTH_BITS = 20
MAX_ENTRY_BYTES = ((1 << _LENGTH_BITS) - 1) * ALIGNED  # larger records are not kept: 64 MiB, 22 megapixels of RGB


class Shape(NamedTuple):
    """The numbers that are needed to use a cache."""

    samples: int  # samples of the source
    extent_bytes: int  # bytes that a worker takes at a time; a multiple of the page size

    @property
    def head_bytes(self) -> int:
        """Bytes before the first extent."""
        return -(-(_TABLE + 8 * self.samples) // _PAGE) * _PAGE


class Counts(NamedTuple):
    """Counts of what workers have done with a cache."""

    hits: int = 0  # samples that were read from it
    misses: int = 0  # samples that it did not hold
    rows: int = 0  # samples that were put into it
    nbytes: int = 0  # their bytes
    bad: int = 0  # entries whose bytes were damaged


def write_numbers(fd: int, shape: Shape, key: bytes) -> None:
    """Begin an empty cache; `key` (32 bytes) identifies its content."""
    os.pwrite(fd, _NUMBERS.pack(_MAGIC, *shape, key), 0)


def has_numbers(fd: int, shape: Shape, key: bytes) -> bool:
    """Say whether a file is a cache of this shape and key."""
    return os.pread(fd, _NUMBERS.size, 0) == _NUMBERS.pack(_MAGIC, *shape, key)


class Book:
    """The daemon's view: the bytes taken, the limit, and the counts; `fd` may be closed afterwards."""

    def __init__(self, fd: int, shape: Shape) -> None:
        self._shape = shape
        self._words = _words(MemoryMap(fd, 0, _TABLE, writable=True))
        self._before = self._sums()

    @property
    def taken_bytes(self) -> int:
        """Bytes of the extents that workers have taken."""
        return int(self._words[_TAKEN]) * self._shape.extent_bytes

    def allow(self, nbytes: int) -> None:
        """Set how many bytes of extents may be taken in total."""
        self._words[_LIMIT] = max(0, nbytes) // self._shape.extent_bytes

    @property
    def counts(self) -> Counts:
        """Hits, misses and damage since this object was made; rows and bytes since the cache began."""
        now, before = self._sums(), self._before
        hits, misses = now.hits - before.hits, now.misses - before.misses
        return now._replace(hits=hits, misses=misses, bad=now.bad - before.bad)

    def _sums(self) -> Counts:
        seats = self._words[_PAGE // 8 :].reshape(_SEATS, _SEAT_WORDS)
        return Counts(*(int(count) for count in seats[:, : len(Counts._fields)].sum(axis=0)))


class Store:
    """A worker's view of a cache in memory, or of a file on disk; `fd` may be closed afterwards.

    The `seat` is the number of the worker, below 1024, whose counters no other process writes.

    Raises:
        SegmentError: It cannot be mapped.
    """

    def __init__(self, fd: int, shape: Shape, seat: int, is_file: bool = False) -> None:
        head_bytes = shape.head_bytes
        size = os.fstat(fd).st_size
        if size < head_bytes:
            raise SegmentError(f"the cache has {size} bytes, fewer than its table of {head_bytes}")
        self._shape = shape
        words = _words(MemoryMap(fd, 0, head_bytes, writable=True))
        self._numbers = words[: _PAGE // 8]
        self._counts = words[_PAGE // 8 : _TABLE // 8].reshape(_SEATS, _SEAT_WORDS)[seat % _SEATS]
        self._table = words[_TABLE // 8 : _TABLE // 8 + shape.samples]
        self._data: npt.NDArray[np.uint8] | None = None
        if not is_file:
            mapping = MemoryMap(fd, head_bytes, size - head_bytes, writable=False)
            self._data = _words(mapping).view(np.uint8)
        self._fd = os.dup(fd)
        self._at = self._end = 0  # the rest of the current extent; offsets count from `head_bytes`
        self._broken = False

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def get(self, index: int, stamp: int) -> dict[str, Any] | None:
        """Return the record of a sample, with views of the cache; None if it is missing, damaged or out of date."""
        word = int(self._table[index])
        if word:
            try:
                record = entry.unpack(self._bytes(word), index, stamp)
            except Damaged:
                self._counts[_BAD] += 1  # again at each read, until a worker has room to replace the entry
            else:
                if record is not None:
                    self._counts[_HITS] += 1
                    return record
        self._counts[_MISSES] += 1
        return None

    def holds(self, index: int) -> bool:
        """Say whether there is a record of a sample, which may be damaged or out of date."""
        return bool(self._table[index])

    def _bytes(self, word: int) -> npt.NDArray[np.uint8]:
        begin, nbytes = (word >> _LENGTH_BITS) * ALIGNED, (word & (1 << _LENGTH_BITS) - 1) * ALIGNED
        if self._data is not None:
            return self._data[begin : begin + nbytes]
        try:
            data = os.pread(self._fd, nbytes, self._shape.head_bytes + begin)
        except (OSError, OverflowError) as error:
            raise Damaged from error
        entry.check(data)
        return np.frombuffer(data, np.uint8).copy()  # torch takes no array that it could not write to

    def has_room(self, nbytes: int) -> bool:
        """Say whether a record of some `nbytes` may be kept, before work is done to make it."""
        if self._broken or nbytes > MAX_ENTRY_BYTES:
            return False
        more = max(0, nbytes - (self._end - self._at))
        return int(self._numbers[_TAKEN]) + -(-more // self._shape.extent_bytes) <= int(self._numbers[_LIMIT])

    def put(self, index: int, stamp: int, record: Mapping[str, Any]) -> bool:
        """Keep a record; return whether it is kept."""
        if not self.has_room(entry.least_bytes(record)):  # once the cache is full, most records are not even packed
            return False
        data = entry.pack(record, index, stamp)
        if data is None or not self.has_room(len(data)):
            return False
        begin = self._place(len(data))
        if begin is None:
            return False
        try:
            self._write(data, self._shape.head_bytes + begin)
        except OSError:  # no space on the disk, or it fails: this worker only reads from now on
            self._broken = True
            return False
        is_new = not self._table[index]
        # ORDER: after the last byte of the entry.
        self._table[index] = begin // ALIGNED << _LENGTH_BITS | len(data) // ALIGNED
        self._counts[_ROWS] += is_new
        self._counts[_BYTES] += len(data)
        return True

    def _write(self, data: bytes, at: int) -> None:
        written = os.pwrite(self._fd, data, at)
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], at + written)

    def _place(self, nbytes: int) -> int | None:
        """Return where to write `nbytes`; None if no extent can be taken."""
        if self._end - self._at < nbytes:
            extent_bytes = self._shape.extent_bytes
            number = -(-nbytes // extent_bytes)
            first = self._take(number)
            if first is None:
                return None
            if first * extent_bytes != self._end:  # otherwise it continues the extent before
                self._at = first * extent_bytes
            self._end = (first + number) * extent_bytes
        begin = self._at
        self._at += nbytes
        return begin

    def _take(self, number: int) -> int | None:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            return None
        try:
            first = int(self._numbers[_TAKEN])
            if first + number > int(self._numbers[_LIMIT]):
                return None
            self._numbers[_TAKEN] = first + number
            return first
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 0)


def _words(mapping: MemoryMap) -> npt.NDArray[np.uint64]:
    buffer: Any = mapping.buffer  # which it keeps mapped
    return np.frombuffer(buffer, np.uint64)
