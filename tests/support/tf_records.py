"""tf.train.Example and its files, written byte by byte: as TensorFlow does, or not quite."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from prepserver.source.readers.tf_record import masked_crc

Values = Sequence[bytes] | Sequence[float] | Sequence[int]


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Values, packed: bool = True) -> bytes:
    """A Feature; not `packed` as old writers write numbers."""
    if not values:
        return b""
    first = values[0]
    if isinstance(first, bytes):
        return field(1, b"".join(field(1, each) for each in values))  # type: ignore[arg-type]
    if isinstance(first, float):
        each = [struct.pack("<f", value) for value in values]
        return field(2, field(1, b"".join(each)) if packed else b"".join(b"\x0d" + one for one in each))
    numbers = [varint(int(value)) for value in values]
    return field(3, field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + one for one in numbers))


def example(values: Mapping[str, Values], packed: bool = True) -> bytes:
    entries = (field(1, name.encode()) + field(2, feature(each, packed)) for name, each in values.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def framed(data: bytes) -> bytes:
    """A record of a file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def file_of(examples: Iterable[Mapping[str, Values]]) -> bytes:
    return b"".join(framed(example(each)) for each in examples)
