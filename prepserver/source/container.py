"""The file that an index lives in: named sections of bytes behind a checked header, made to be mapped.

Layout: a fixed header, metadata as JSON, then the sections, each aligned to 8 bytes. The header counts the
bytes of the whole file and a CRC covers header and metadata, so that a cut-off, foreign or half-written file
is refused. A file appears whole, by rename, and is never changed afterwards; so a mapping stays good for
as long as anybody holds it, even when the name is gone.

This module knows nothing of datasets.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Begin of every unfinished file, so that those of killed processes can be found.
TEMPORARY_PREFIX = ".unfinished-"

_MAGIC = b"PREPIDX\x01"
# Magic, byte order mark, bytes of metadata, bytes of the file; then the CRC of these and the metadata.
# Native byte order: the sections are mapped as they are, so a file from another kind of machine is foreign.
_HEADER = struct.Struct("=8sIIQ")
_CRC = struct.Struct("=I")
_BYTE_ORDER = 0x01020304
_PREFIX_BYTES = _HEADER.size + _CRC.size


class BrokenContainerError(Exception):
    """The file is not a whole container of this version."""


class Container:
    """A mapped container.

    Attributes:
        meta: The metadata that it was written with.
    """

    def __init__(self, path: Path, admit: Callable[[int], None] = lambda _descriptor: None) -> None:
        """Map a file and check its header; the sections are not touched.

        Args:
            path: Where.
            admit: Called with the open file before anything of it is read; what it raises is passed on.

        Raises:
            BrokenContainerError: Cut off, damaged, foreign, or of another version.
            OSError: The file cannot be opened.
        """
        with path.open("rb") as file:
            admit(file.fileno())
            size = os.fstat(file.fileno()).st_size
            if size < _PREFIX_BYTES:
                raise BrokenContainerError(f"{path}: only {size} bytes")
            self._view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        magic, byte_order, meta_bytes, total_bytes = _HEADER.unpack_from(self._view)
        if magic != _MAGIC or byte_order != _BYTE_ORDER:
            raise BrokenContainerError(f"{path}: not an index of this version and machine")
        if total_bytes != size or _PREFIX_BYTES + meta_bytes > size:
            raise BrokenContainerError(f"{path}: {size} bytes, should be {total_bytes}")
        encoded = self._view[_PREFIX_BYTES : _PREFIX_BYTES + meta_bytes]
        (crc,) = _CRC.unpack_from(self._view, _HEADER.size)
        if crc != zlib.crc32(encoded, zlib.crc32(self._view[: _HEADER.size])):
            raise BrokenContainerError(f"{path}: the checksum is wrong")
        content = json.loads(bytes(encoded))
        self.meta: dict[str, Any] = content["meta"]
        self._sections: dict[str, list[int]] = content["sections"]
        self._start = _aligned(_PREFIX_BYTES + meta_bytes)

    def section(self, name: str) -> memoryview:
        """The bytes of a section, read-only; they live as long as the view does.

        Raises:
            BrokenContainerError: There is no such section.
        """
        if name not in self._sections:
            raise BrokenContainerError(f"no section {name}")
        offset, length = self._sections[name]
        return self._view[self._start + offset : self._start + offset + length]


def write_container(path: Path, meta: Mapping[str, Any], sections: Mapping[str, memoryview]) -> None:
    """Write a container so that it appears whole or not at all; an older file of that name is replaced.

    Args:
        path: Where it shall appear, mode 0600; the folder must exist.
        meta: Plain values for JSON.
        sections: Name to contiguous bytes.

    Raises:
        OSError: No space, no permission.
    """
    table: dict[str, list[int]] = {}
    end = 0
    for name, data in sections.items():
        table[name] = [end, data.nbytes]
        end = _aligned(end + data.nbytes)
    # ASCII JSON carries lone surrogates, the way in which Python spells names that are not UTF-8.
    encoded = json.dumps({"meta": meta, "sections": table}, separators=(",", ":")).encode("ascii")
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
            # The sections have no checksum of their own: after a power cut there must be no file whose
            # header reached the disk and whose sections are zeros.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8
