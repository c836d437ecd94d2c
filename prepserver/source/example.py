"""tf.train.Example: the bytes of a record as features, by the wire format of protocol buffers.

An Example nests messages to a fixed depth: Example, Features, an entry of a map, Feature, and a list of bytes, floats
or integers. So a fixed number of loops reads it, and no file can make it recurse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Value = list[bytes] | npt.NDArray[Any]  # the value of a feature: a list of bytes, or an array of float32 or int64

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_BYTES, _FLOAT, _INT64 = 1, 2, 3
_MAX_VARINT_BYTES = 10
_TOO_LONG = f"a number has more than {_MAX_VARINT_BYTES} bytes"
_PIECE_BYTES = 1 << 20  # integers are decoded in pieces, because decoding takes fifty times the memory of a piece
_ALONE = 16
"""Up to this many bytes, integers are read one by one; above, as an array, which takes 30 us for any number."""


class BrokenExampleError(Exception):
    """The bytes are not a tf.train.Example."""


def features(data: bytes, at: int, end: int, wanted: Collection[bytes]) -> dict[bytes, Value]:
    """Return the wanted features that the Example in data[at:end] has; raises `BrokenExampleError` if it is none."""
    try:
        return {name: _values(data, *place) for name, *place in _entries(data, at, end) if name in wanted}
    except IndexError:
        raise BrokenExampleError("it ends inside of a field") from None


def names(data: bytes, at: int, end: int) -> list[bytes]:
    """Return the names of all features of an Example that `features` has read."""
    return [name for name, _, _ in _entries(data, at, end)]


def _entries(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name of each feature, and the begin and the end of its message."""
    while at < end:
        number, inner, at = _field(data, at, end)
        while number == 1 and inner < at:
            kind, entry, inner = _field(data, inner, at)
            name, begin, stop = b"", inner, inner
            while kind == 1 and entry < inner:
                part, content, entry = _field(data, entry, inner)
                if part == 1:
                    name = data[content:entry]
                elif part == 2:
                    begin, stop = content, entry
            if kind == 1:
                yield name, begin, stop


def _values(data: bytes, at: int, end: int) -> Value:
    """Return the values of a Feature: an empty list if it has none."""
    value: Value = []
    while at < end:
        kind, inner, at = _field(data, at, end)
        if kind not in (_BYTES, _FLOAT, _INT64):
            continue
        parts = []
        while inner < at:
            number, content, inner = _field(data, inner, at)
            if number == 1:
                parts.append(data[content:inner])
        if kind == _BYTES:
            value = parts
            continue
        packed = parts[0] if len(parts) == 1 else b"".join(parts)
        if kind == _INT64:
            value = _integers(packed)
        elif len(packed) % 4:
            raise BrokenExampleError("a list of floats ends inside of one")
        else:
            value = np.frombuffer(packed, "<f4")
    return value


def _field(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return the number of a field, where its content begins, and where the field ends."""
    tag = data[at]
    at += 1
    if tag >= 0x80:
        tag, at = _varint(data, at - 1)
    kind, begin = tag & 7, at
    if kind == _LEN:
        length = data[at]
        begin += 1
        if length >= 0x80:
            more = data[begin]  # two bytes are enough for most, and take no call
            length, begin = (length + (more << 7) - 0x80, begin + 1) if more < 0x80 else _varint(data, at)
        at = begin + length
    elif kind == _VARINT:
        _, at = _varint(data, at)
    elif kind in (_I64, _I32):
        at += 8 if kind == _I64 else 4
    else:
        raise BrokenExampleError(f"a field has the unknown type {kind}")
    if at > end:
        raise BrokenExampleError(f"a field of {at - begin} bytes does not fit into {end - begin}")
    return tag >> 3, begin, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
    value = shift = 0
    for place in range(at, at + _MAX_VARINT_BYTES):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise BrokenExampleError(_TOO_LONG)


def _integers(data: bytes) -> npt.NDArray[np.int64]:
    """Return the numbers of packed varints, as signed."""
    if data and data[-1] >= 0x80:
        raise BrokenExampleError("a list of integers ends inside of one")
    if len(data) <= _ALONE:
        found, at = [], 0
        while at < len(data):
            value, at = _varint(data, at)
            found.append(value & 0xFFFFFFFFFFFFFFFF)
        return np.array(found, np.uint64).view(np.int64)
    pieces, at = [], 0
    while at < len(data):
        end = min(at + _PIECE_BYTES, len(data))
        while end > at and data[end - 1] >= 0x80:
            end -= 1
        if end == at:
            raise BrokenExampleError(_TOO_LONG)
        pieces.append(_piece(np.frombuffer(data, np.uint8, end - at, at)))
        at = end
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _piece(each: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    ends = np.flatnonzero(each < 0x80)
    begins = np.concatenate(([0], ends[:-1] + 1))
    if (ends - begins).max() >= _MAX_VARINT_BYTES:
        raise BrokenExampleError(_TOO_LONG)
    shifts = (np.arange(len(each)) - np.repeat(begins, ends - begins + 1)).astype(np.uint64) * np.uint64(7)
    return np.add.reduceat((each & np.uint8(0x7F)).astype(np.uint64) << shifts, begins).view(np.int64)
