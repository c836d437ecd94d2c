"""The file format of an index: named sections of bytes after a checked header, read piece by piece.

Layout: a fixed header, metadata as JSON, the sections, each aligned to 8 bytes, and a CRC of each page of the sections.
One more CRC covers the header, the metadata and the CRCs of the pages. It is compared when the file is opened, so a
file that is cut off, foreign or half-written is refused at once. A page is compared before it is used for the first
time, so opening takes milliseconds however large the file is, and no damage goes unseen. A file appears whole, by
rename, and never changes afterwards; a process that has it open can read it even after its name is gone.

It is read, not mapped: if somebody cuts the file, or its disk fails, a read is an error, but a mapping would kill each
process that touches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.checksum import crc32
from prepserver.source.roots import ANYWHERE, Roots, open_below

# The names of unfinished files begin with this, so that those of killed processes can be found.
UNFINISHED = ".unfinished-"

AGAIN = "attach again to have it rebuilt"  # what to do about a broken index of a cache

# The last byte is the version of the layout. A file of another version counts as broken, so a cache rebuilds it.
_MAGIC = b"PREPIDX\x03"
# Magic, byte order mark, bytes of metadata, bytes of all sections; then the CRC.
# Native byte order: the sections are written as they are, so a file from another kind of machine is foreign.
_HEADER = struct.Struct("=8sIIQ")
_CRC = struct.Struct("=I")
_BYTE_ORDER = 0x01020304
_PREFIX_BYTES = _HEADER.size + _CRC.size

_PAGE_BYTES = 1 << 14
"""Bytes of the sections that share a CRC: the rows of some 300 samples. Smaller pages make opening slower, which reads
all CRCs; larger ones make the first look at a sample slower."""


class BrokenContainerError(OSError):
    """The file is not a whole container of this version.

    No sample is to blame: as after any other OSError, no row may be made from what could be read.
    """

    def __init__(self, path: Path, why: str, is_there: bool = True) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.is_there = is_there  # whether the path still leads to this file: a new index may have taken its name


class Container:
    """An open container at a `path`: `meta` is what it was written with; errors end with the `remedy`.

    Raises:
        OutsideRootsError: It lies outside.
        BrokenContainerError: It is cut off, foreign or of another version, or its header is damaged.
        OSError: It cannot be opened or read.
    """

    def __init__(self, path: Path, roots: Roots = ANYWHERE, remedy: str = AGAIN) -> None:
        self.path, self._remedy = path, remedy
        self._file = open_below(roots, "the index", os.fspath(path))
        status = os.fstat(self._file)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or size < _PREFIX_BYTES:
            raise self._broken(f"not a file of {_PREFIX_BYTES} bytes or more")
        prefix = self._bytes(0, _PREFIX_BYTES)
        magic, byte_order, meta_bytes, self._length = _HEADER.unpack_from(prefix)
        if magic != _MAGIC or byte_order != _BYTE_ORDER:
            raise self._broken("not an index of this version and machine")
        self._start = _aligned(_PREFIX_BYTES + meta_bytes)
        pages, end = -(-self._length // _PAGE_BYTES), self._start + self._length
        if size != end + _CRC.size * pages:
            raise self._broken(f"{size} bytes, should be {end + _CRC.size * pages}")
        encoded, crcs = self._bytes(_PREFIX_BYTES, meta_bytes), self._bytes(end, _CRC.size * pages)
        if prefix[_HEADER.size :] != _head_crc(prefix[: _HEADER.size], encoded, crcs):
            raise self._broken("the checksum of its header is wrong")
        try:
            content = json.loads(encoded)
            self.meta: dict[str, Any] = dict(content["meta"])
            self._sections: dict[str, list[int]] = dict(content["sections"])
        except (ValueError, KeyError, TypeError, RecursionError):  # a stranger may have written it, checksums and all
            raise self._broken("its metadata cannot be read") from None
        self._crcs = memoryview(crcs).cast("I")
        self._is_new = bytearray(b"\1" * pages)  # by page: 1 until its CRC has been compared

    def __del__(self) -> None:
        if "_file" in self.__dict__:  # it could be opened
            os.close(self._file)

    def section(self, name: str) -> bytes:
        """Return a whole section; raises `BrokenContainerError` if it is missing or damaged, else `OSError`."""
        return self._read(*self._place(name))

    def piece(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a section; raises as `section`."""
        begins, length = self._place(name)
        if not 0 <= start <= end <= length:
            raise self._broken(f"bytes {start} to {end} of the {length} of its {name}")
        return self._read(begins + start, end - start)

    def rows(self, name: str, form: str, step: int) -> NumberRows:
        """Return a section of numbers, see `NumberRows`; raises as `section`."""
        return NumberRows(self._read, *self._place(name), form, step)

    def check(self) -> None:
        """Compare all pages; 0.1 s for a gigabyte that is in memory. Raises as `section`."""
        self._compare(0, len(self._is_new))

    def _place(self, name: str) -> tuple[int, int]:
        """Return where a section begins among all sections, and its length."""
        if name not in self._sections:
            raise self._broken(f"no section {name}")
        begins, length = self._sections[name]
        if not 0 <= begins <= begins + length <= self._length:  # as above
            raise self._broken(f"its {name} are bytes {begins} to {begins + length} of {self._length}")
        return begins, length

    def _read(self, at: int, count: int) -> bytes:
        first, end = at // _PAGE_BYTES, (at + count - 1) // _PAGE_BYTES + 1
        if self._is_new.find(1, first, end) >= 0:
            self._compare(first, end)
        return self._bytes(self._start + at, count)

    def _compare(self, first: int, end: int) -> None:
        while (page := self._is_new.find(1, first, end)) >= 0:
            at = page * _PAGE_BYTES
            data = self._bytes(self._start + at, min(_PAGE_BYTES, self._length - at))
            if crc32(data) != self._crcs[page]:
                raise self._broken(f"damaged: the checksum of the {len(data)} bytes at {self._start + at} is wrong")
            self._is_new[page] = 0

    def _bytes(self, at: int, count: int) -> bytes:
        data = os.pread(self._file, count, at)
        if len(data) != count:
            raise self._broken("cut short while it is in use")
        return data

    def _broken(self, why: str) -> BrokenContainerError:
        try:
            is_there = os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except OSError:
            is_there = False
        return BrokenContainerError(self.path, f"{why}; {self._remedy}", is_there)


class NumberRows:
    """Rows of numbers in a section; one system call reads a row.

    `form` is the form of a row as in `struct`, without padding. It may reach into the next row, whose first number is
    then the end of this row's piece. `step` is the number of bytes from row to row.
    """

    __slots__ = ("_begins", "_count", "_form", "_read", "_step")

    def __init__(self, read: Callable[[int, int], bytes], begins: int, length: int, form: str, step: int) -> None:
        self._read, self._begins, self._step = read, begins, step  # `read` takes an offset among all sections
        self._form = struct.Struct(f"={form}")
        self._count = max(0, (length - self._form.size) // step + 1)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if not 0 <= index < self._count:
            raise IndexError(f"index {index} of {self._count} rows")
        return self._form.unpack(self._read(self._begins + index * self._step, self._form.size))

    def column(self, start: int, stop: int, dtype: str, offset: int) -> npt.NDArray[Any]:
        """Return one number of each row in [start, stop): the one `offset` bytes after the begin of the row."""
        if not 0 <= start <= stop <= self._count:
            raise IndexError(f"rows {start} to {stop} of {self._count}")
        data = self._read(self._begins + start * self._step, (stop - start) * self._step)
        return np.ndarray(stop - start, dtype, data, offset, (self._step,))


def write_container(path: Path, meta: Mapping[str, Any], sections: Mapping[str, memoryview]) -> None:
    """Write a container, of mode 0600, so that it appears whole or not at all; it replaces an older file of that name.

    `meta` holds plain values for JSON, `sections` contiguous bytes by name.

    Raises:
        OSError: No space, no permission.
    """
    table: dict[str, list[int]] = {}
    pieces: list[memoryview] = []
    end = 0
    for name, data in sections.items():
        table[name] = [end, data.nbytes]
        if data.nbytes:
            pieces += data.cast("B"), memoryview(bytes(-data.nbytes % 8))
        end = _aligned(end + data.nbytes)
    # ASCII JSON carries lone surrogates, by which Python spells names that are not UTF-8.
    encoded = json.dumps({"meta": dict(meta), "sections": table}, separators=(",", ":")).encode("ascii")
    header, crcs = _HEADER.pack(_MAGIC, _BYTE_ORDER, len(encoded), end), _page_crcs(pieces)
    head = header + _head_crc(header, encoded, crcs) + encoded

    write_whole(path, (head, bytes(-len(head) % 8), *pieces, crcs))


def write_whole(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file so that it appears whole or not at all; mode 0600. Raises as `write_container`."""
    descriptor, temporary = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            # Without this, a power cut could leave a file whose header reached the disk and whose sections are zeros.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _page_crcs(pieces: Iterable[memoryview]) -> bytes:
    """Return the CRC of each page of the concatenated pieces."""
    crcs, crc, filled = array("I"), 0, 0
    for piece in pieces:
        at = 0
        while at < len(piece):
            part = piece[at : at + _PAGE_BYTES - filled]
            crc, at, filled = zlib.crc32(part, crc), at + len(part), filled + len(part)
            if filled == _PAGE_BYTES:
                crcs.append(crc)
                crc = filled = 0
    if filled:
        crcs.append(crc)
    return crcs.tobytes()


def _head_crc(header: bytes, encoded: bytes, crcs: bytes) -> bytes:
    return _CRC.pack(crc32(crcs, before=crc32(encoded, before=crc32(header))))


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8
