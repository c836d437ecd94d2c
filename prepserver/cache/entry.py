"""An entry: one record as bytes, with a checksum and the stamp of the file that it was made from.

A head of 32 bytes, a msgpack list of the columns, then the bytes of arrays and strings, each at a multiple of 64.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from prepserver.checksum import crc32

ALIGNED = 64
_HEAD = struct.Struct("<IIQQQ")  # checksum of all that follows it, bytes of the list, of the entry, index, stamp
_CRC_BYTES = 4


class Damaged(Exception):
    """The bytes are not a whole entry."""


def pack(record: Mapping[str, Any], index: int, stamp: int) -> bytes | None:
    """Return a record as an entry, a multiple of `ALIGNED` bytes; None if it has a value that entries cannot hold."""
    columns: list[list[Any]] = []
    blobs: list[bytes] = []
    at = 0
    for name, given in record.items():
        # Boxes and points may be paired with the size of their image.
        value, *size = given if isinstance(given, tuple) else (given,)
        if isinstance(value, np.ndarray) and (value.dtype.hasobject or value.dtype.names):
            return None
        if isinstance(value, np.ndarray):
            blob = value.tobytes()
            columns.append([name, at, value.dtype.str, list(value.shape), *size])
        elif size:
            return None
        elif isinstance(value, bytes):
            blob = value
            columns.append([name, at, len(blob)])
        elif isinstance(value, bool | int | float | str | np.generic | None):
            columns.append([name, value.item() if isinstance(value, np.generic) else value])
            continue
        else:
            return None
        blobs += [blob, b"\0" * (-len(blob) % ALIGNED)]
        at += len(blob) + len(blobs[-1])
    try:
        listed = msgpack.packb(columns)
    except (OverflowError, ValueError, TypeError):
        return None
    gap = b"\0" * (-(_HEAD.size + len(listed)) % ALIGNED)
    nbytes = _HEAD.size + len(listed) + len(gap) + at
    data = bytearray().join((_HEAD.pack(0, len(listed), nbytes, index, stamp), listed, gap, *blobs))
    struct.pack_into("<I", data, 0, crc32(bytes(data), _CRC_BYTES))
    return bytes(data)


def least_bytes(record: Mapping[str, Any]) -> int:
    """Return the bytes that a record's arrays and encoded images take in its entry: less than the whole entry."""
    return sum(
        value.nbytes if isinstance(value, np.ndarray) else len(value)
        for value in record.values()
        if isinstance(value, np.ndarray | bytes)
    )


def check(data: bytes) -> None:
    """Raise `Damaged` if an entry differs from its checksum."""
    if len(data) < _HEAD.size or crc32(data, _CRC_BYTES) != _HEAD.unpack_from(data)[0]:
        raise Damaged


def unpack(data: npt.NDArray[np.uint8], index: int, stamp: int) -> dict[str, Any] | None:
    """Return a sample's record as views of `data`, None if its file has changed; raises `Damaged` if it is no entry."""
    view = data.data
    if len(view) < _HEAD.size:
        raise Damaged
    _, listed_bytes, nbytes, index_found, stamp_found = _HEAD.unpack_from(view)
    if nbytes != len(view) or index_found != index or _HEAD.size + listed_bytes > nbytes:
        raise Damaged
    if stamp_found != stamp:
        return None
    begin = _HEAD.size + listed_bytes
    begin += -begin % ALIGNED
    record: dict[str, Any] = {}
    try:
        for name, value, *rest in msgpack.unpackb(view[_HEAD.size : _HEAD.size + listed_bytes]):
            if not rest:
                record[name] = value
            elif len(rest) == 1:
                record[name] = bytes(view[begin + value : begin + value + rest[0]])
            else:
                dtype = np.dtype(rest[0])
                if dtype.hasobject:  # its bytes would be taken for addresses
                    raise Damaged
                array = np.ndarray(rest[1], dtype, data, begin + value)
                record[name] = (array, tuple(rest[2])) if len(rest) > 2 else array
    except (ValueError, TypeError, SyntaxError, msgpack.UnpackException) as error:  # numpy parses names of types
        raise Damaged from error
    return record
