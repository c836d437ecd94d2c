"""The file that an index lives in: named sections of bytes after a checked header, read piece by piece.

Layout: a fixed header, metadata as JSON, then the sections, each aligned to 8 bytes. The header has the size of the
whole file, a CRC covers header and metadata, and a CRC in the metadata covers the sections. All are checked when the
file is opened, so a file that is cut off, foreign, half-written or damaged is refused. A file appears whole, by rename,
and never changes afterwards; whoever holds it open can read it even after its name is gone.

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.checksum import crc32
from prepserver.source.roots import Roots, open_below

# Begins the name of every unfinished file, so that those of killed processes can be found.
TEMPORARY_PREFIX = ".unfinished-"

_MAGIC = b"PREPIDX\x02"
# Magic, byte order mark, bytes of metadata, bytes of the file; then the CRC of these and the metadata.
# Native byte order: the sections are written as they are, so a file from another kind of machine is foreign.
_HEADER = struct.Struct("=8sIIQ")
_CRC = struct.Struct("=I")
_BYTE_ORDER = 0x01020304
_PREFIX_BYTES = _HEADER.size + _CRC.size

_CRC_KEY = "crc"
"""In the metadata: CRC-32 of all sections, one after the other, in the order of their table."""

_STEP_BYTES = 1 << 20


class BrokenContainerError(Exception):
    """The file is not a whole container of this version."""


class Container:
    """An open container, checked to its last byte; 0.1 s for a gigabyte that is in memory.

    Args:
        path: The file.
        roots: Where it must lie.

    Attributes:
        meta: The metadata that it was written with, and the checksum of the sections.

    Raises:
        OutsideRootsError: It lies outside.
        BrokenContainerError: It is cut off, damaged, foreign, or of another version.
        OSError: It cannot be opened or read.
    """

    def __init__(self, path: Path, roots: Roots | None = None) -> None:
        self._path = path
        self._file = open_below(roots, "the index", os.fspath(path))
        status = os.fstat(self._file)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or size < _PREFIX_BYTES:
            raise BrokenContainerError(f"{path}: not a file of {_PREFIX_BYTES} bytes or more")
        prefix = self._read(0, _PREFIX_BYTES)
        magic, byte_order, meta_bytes, total_bytes = _HEADER.unpack_from(prefix)
        if magic != _MAGIC or byte_order != _BYTE_ORDER:
            raise BrokenContainerError(f"{path}: not an index of this version and machine")
        if total_bytes != size or _PREFIX_BYTES + meta_bytes > size:
            raise BrokenContainerError(f"{path}: {size} bytes, should be {total_bytes}")
        encoded = self._read(_PREFIX_BYTES, meta_bytes)
        (crc,) = _CRC.unpack_from(prefix, _HEADER.size)
        if crc != zlib.crc32(encoded, zlib.crc32(prefix[: _HEADER.size])):
            raise BrokenContainerError(f"{path}: the checksum is wrong")
        content = json.loads(encoded)
        self.meta: dict[str, Any] = content["meta"]
        self._sections: dict[str, list[int]] = content["sections"]
        self._start = _aligned(_PREFIX_BYTES + meta_bytes)
        if self.meta.get(_CRC_KEY) != self._sections_crc():
            raise BrokenContainerError(f"{path}: the checksum of its sections is wrong, or it has none")

    def __del__(self) -> None:
        if "_file" in self.__dict__:  # it could be opened
            os.close(self._file)

    def section(self, name: str) -> bytes:
        """Return all of a section.

        Raises:
            BrokenContainerError: There is no such section, or the file was cut since it was opened.
            OSError: It cannot be read.
        """
        return self._read(*self._place(name))

    def piece(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a section; raises as `section`."""
        begins, length = self._place(name)
        if not 0 <= start <= end <= length:
            raise BrokenContainerError(f"{self._path}: {start} to {end} of the {length} bytes of its {name}")
        return self._read(begins + start, end - start)

    def rows(self, name: str, form: str, step: int) -> Rows:
        """Return a section of numbers, see `Rows`; raises as `section`."""
        return Rows(self._read, *self._place(name), form, step)

    def _place(self, name: str) -> tuple[int, int]:
        """Return where a section begins in the file, and its length."""
        if name not in self._sections:
            raise BrokenContainerError(f"no section {name}")
        offset, length = self._sections[name]
        return self._start + offset, length

    def _read(self, at: int, count: int) -> bytes:
        data = os.pread(self._file, count, at)
        if len(data) != count:
            raise BrokenContainerError(f"{self._path}: cut short while it is in use")
        return data

    def _sections_crc(self) -> int:
        crc = 0
        for name in self._sections:
            begins, length = self._place(name)
            for done in range(0, length, _STEP_BYTES):
                crc = crc32(self._read(begins + done, min(_STEP_BYTES, length - done)), before=crc)
        return crc


class Rows:
    """Rows of numbers in a section; one system call reads a row.

    Args:
        read: Reads (offset in the file, number of bytes).
        begins: Offset of the first row in the file.
        length: Bytes of all rows.
        form: In the format of the module `struct`, without padding. It may reach into the next row, whose begin is then
            the end of this one's piece.
        step: Bytes from row to row.
    """

    __slots__ = ("_begins", "_count", "_form", "_read", "_step")

    def __init__(self, read: Callable[[int, int], bytes], begins: int, length: int, form: str, step: int) -> None:
        self._read = read
        self._begins = begins
        self._form = struct.Struct(f"={form}")
        self._count = max(0, (length - self._form.size) // step + 1)
        self._step = step

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if not 0 <= index < self._count:
            raise IndexError(f"index {index} of {self._count} rows")
        return self._form.unpack(self._read(self._begins + index * self._step, self._form.size))

    def column(self, start: int, stop: int, dtype: str, offset: int) -> npt.NDArray[Any]:
        """Return one number of each row in [start, stop), which lies `offset` bytes after the row's begin."""
        if not 0 <= start <= stop <= self._count:
            raise IndexError(f"rows {start} to {stop} of {self._count}")
        data = self._read(self._begins + start * self._step, (stop - start) * self._step)
        return np.ndarray(stop - start, dtype, data, offset, (self._step,))


def write_container(path: Path, meta: Mapping[str, Any], sections: Mapping[str, memoryview]) -> None:
    """Write a container so that it appears whole or not at all; it replaces an older file of that name.

    Args:
        path: Its path, mode 0600; the folder must exist.
        meta: Plain values for JSON, under other keys than "crc".
        sections: Contiguous bytes by name.

    Raises:
        OSError: No space, no permission.
    """
    table: dict[str, list[int]] = {}
    end = sections_crc = 0
    for name, data in sections.items():
        table[name] = [end, data.nbytes]
        end = _aligned(end + data.nbytes)
        sections_crc = zlib.crc32(data, sections_crc)
    # ASCII JSON carries lone surrogates, by which Python spells names that are not UTF-8.
    content = {"meta": {**meta, _CRC_KEY: sections_crc}, "sections": table}
    encoded = json.dumps(content, separators=(",", ":")).encode("ascii")
    start = _aligned(_PREFIX_BYTES + len(encoded))
    header = _HEADER.pack(_MAGIC, _BYTE_ORDER, len(encoded), start + end)
    crc = _CRC.pack(zlib.crc32(encoded, zlib.crc32(header)))

    descriptor, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(header + crc + encoded)
            for name, data in sections.items():
                file.seek(start + table[name][0])
                file.write(data)
            file.truncate(start + end)
            file.flush()
            # Without this, a power cut could leave a file whose header reached the disk and whose sections are zeros.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8
