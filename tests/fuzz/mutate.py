"""Makes a new input of old ones, by the parts that a decoder knows: segments, tables, scans, markers, the index.

Bytes changed blindly mostly end in the first check; a table that is broken, missing, or in another place does not.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from prepserver.protocol.packed import MAGIC, BrokenRecordError, pack_record, read_record
from prepserver.transform.segments import record_of
from tests.fuzz.jpegs import broken_codes, exif, huffman, jpeg, quantisation, record, segment

MOST_BYTES = 1 << 16
_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 127, 128, 254, 255)

Pieces = list[bytes]


def new_input(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """One more."""
    if not corpus or rng.random() < 0.3:
        return rng.choice((jpeg, jpeg, record))(rng)
    data, other = rng.choice(corpus), rng.choice(corpus)
    made = _changed_record(rng, data, other) if data.startswith(MAGIC) else _changed(rng, data, _image(other))
    return made[:MOST_BYTES]


def split(data: bytes) -> Pieces:
    """Take a JPEG apart: markers with what belongs to them, and what lies between those; joined it is the same."""
    pieces, at, begin = [], 0, 0
    while at + 1 < len(data):
        if data[at] != 0xFF or data[at + 1] in (0, 0xFF):
            at += 1
            continue
        if at > begin:
            pieces.append(data[begin:at])
        begin, marker = at, data[at + 1]
        bare = 0xD0 <= marker <= 0xD9
        at = min(len(data), at + 2 + (0 if bare else int.from_bytes(data[at + 2 : at + 4], "big")))
        pieces.append(data[begin:at])
        begin = at
    return [*pieces, data[begin:]] if begin < len(data) else pieces


def _image(data: bytes) -> bytes:
    try:
        return bytes(read_record(data)[2])
    except BrokenRecordError:
        return data


def _changed(rng: Random, data: bytes, other: bytes) -> bytes:
    pieces = split(data)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        if pieces:
            rng.choice(_CHANGES)(rng, pieces, split(other))
    return b"".join(pieces)


def _changed_record(rng: Random, data: bytes, other: bytes) -> bytes:
    """With checksums that agree, or it would be refused before anybody looks."""
    try:
        head, index, image = read_record(data)
    except BrokenRecordError:
        return data
    jpeg_bytes = bytes(image)
    lengths = np.frombuffer(index, "<u2").astype(np.int64)
    kind = rng.randrange(5)
    if kind == 0 and len(lengths) > 1:  # lengths that add up, but are not where the markers are
        k, by = rng.randrange(len(lengths) - 1), rng.randint(-9, 9)
        lengths[k : k + 2] += (by, -by)
    elif kind == 4 and len(lengths) > 9:  # that are, with the right numbers, but of the eighth segment from there
        cut = rng.randint(9, len(lengths) - 1)
        rest = [2] * (len(lengths) - cut + 7)
        rest.append(int(lengths[cut:].sum()) - sum(rest))
        lengths = np.concatenate(([lengths[:9].sum()], lengths[9:cut], rest))
    elif kind == 1 and head.segments:
        name = rng.choice(("height", "width", "height_at", "scan_at", "orientation", "interval"))
        other_value: Any = rng.choice((*_NUMBERS, getattr(head, name) + rng.randint(-9, 9)))
        head = dataclasses.replace(head, **{name: other_value})
    elif kind == 2 and len(lengths):
        lengths[rng.randrange(len(lengths))] = rng.choice((*_NUMBERS, 65535))
    else:
        jpeg_bytes = _changed(rng, jpeg_bytes, _image(other))[:MOST_BYTES]
        if len(lengths) and rng.random() < 0.5:  # an index of what is there
            return record_of(head.sample, jpeg_bytes, head.orientation) or data
        if len(lengths) and rng.random() < 0.8:  # one that still adds up to it
            lengths[rng.choice((0, -1))] += len(jpeg_bytes) - len(image)
    try:
        head = dataclasses.replace(head, image_bytes=len(jpeg_bytes), image_crc=zlib.crc32(jpeg_bytes))
        return pack_record(head, lengths.clip(0, 65535).astype("<u2").tobytes(), jpeg_bytes)
    except struct.error:  # no room for such a number
        return data


def _drop(rng: Random, pieces: Pieces, other: Pieces) -> None:
    del pieces[rng.randrange(len(pieces))]


def _again(rng: Random, pieces: Pieces, other: Pieces) -> None:
    pieces.insert(rng.randint(0, len(pieces)), rng.choice(pieces))


def _swap(rng: Random, pieces: Pieces, other: Pieces) -> None:
    a, b = rng.randrange(len(pieces)), rng.randrange(len(pieces))
    pieces[a], pieces[b] = pieces[b], pieces[a]


def _splice(rng: Random, pieces: Pieces, other: Pieces) -> None:
    """A run of another file's, in the place of one of ours or between two."""
    if other:
        begin, at = rng.randrange(len(other)), rng.randint(0, len(pieces))
        pieces[at : at + rng.randrange(3)] = other[begin : begin + rng.choice((1, 1, 2, 5))]


def _insert(rng: Random, pieces: Pieces, other: Pieces) -> None:
    """A segment of our own, of which some are broken."""
    place = rng.choice((0, 1, 16, 17, rng.randrange(256)))
    made = rng.choice(
        (
            lambda: huffman(place, broken_codes(rng)),
            lambda: quantisation(rng, rng.randrange(4)),
            lambda: exif(rng),
            lambda: segment(0xDD, bytes([0, rng.choice(_NUMBERS)])),
            lambda: segment(rng.randrange(0xC0, 0x100), rng.randbytes(rng.randrange(20))),
            lambda: bytes([0xFF, rng.randrange(0xD0, 0xDA)]),
        )
    )()
    pieces.insert(rng.randint(0, len(pieces)), made)


def _cut(rng: Random, pieces: Pieces, other: Pieces) -> None:
    """Truncated, with or without an end."""
    k = rng.randrange(len(pieces))
    pieces[k] = pieces[k][: rng.randint(0, len(pieces[k]))]
    pieces[k + 1 :] = rng.choice(([], [b"\xff\xd9"]))


def _bytes(rng: Random, pieces: Pieces, other: Pieces) -> None:
    """Some bytes of one piece, or its bits, or fewer or more of them; headers as often as all the rest."""
    k = rng.randrange(len(pieces))
    piece = bytearray(pieces[k])
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(piece)) if piece else 0
        kind = rng.randrange(5)
        if kind == 0 and piece:
            piece[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and piece:
            piece[at] = rng.choice(_NUMBERS)
        elif kind == 2:
            piece[at:at] = rng.choice((b"\xff", b"\xff\0", b"\xff\xff", bytes(rng.randrange(99)), rng.randbytes(9)))
        elif kind == 3:
            del piece[at : at + rng.choice((1, 2, 30))]
        elif (stuffed := piece.find(b"\xff\0", at)) >= 0:
            piece[stuffed:stuffed] = b"\xff" * rng.randint(1, 70)  # fill bytes
    pieces[k] = bytes(piece)


def _size(rng: Random, pieces: Pieces, other: Pieces) -> None:
    """Another size, sampling or table in the frame header, which stays as long as it is."""
    for k, piece in enumerate(pieces):
        if piece[:1] == b"\xff" and piece[1:2] in (b"\xc0", b"\xc1", b"\xc2") and len(piece) > 10:
            frame, at = bytearray(piece), rng.choice((5, 7, rng.randrange(4, len(piece))))
            frame[at] = rng.choice((*_NUMBERS, 0x11, 0x21, 0x12, 0x22, 0x41, rng.randrange(256)))
            pieces[k] = bytes(frame)


_CHANGES: list[Callable[[Random, Pieces, Pieces], None]] = [
    _drop, _again, _swap, _splice, _splice, _insert, _insert, _cut, _bytes, _bytes, _bytes, _size,
]  # fmt: skip
