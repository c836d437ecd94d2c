"""Writes JPEGs of every kind that a decoder may meet, most of them valid: noise, but in tables and scans of their own.

Coefficients are not those of any picture: each block is a line of random codes. So every number of components, sampling
factor, order of scans and length of code is as easy to have as any other, which no encoder offers. Progressive ones are
Pillow's.
"""

from __future__ import annotations

import io
import struct
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image

from prepserver.transform.segments import record_of

_USUAL = ([(1, 1)], [(1, 1)] * 3, [(2, 1), (1, 1), (1, 1)], [(2, 2), (1, 1), (1, 1)], [(1, 2), (1, 1), (1, 1)],
          [(4, 1), (1, 1), (1, 1)])  # fmt: skip


class Part(NamedTuple):
    """A component: its identifier, and how many blocks of it an MCU has across and down."""

    name: int
    across: int
    down: int


class Codes(NamedTuple):
    """A Huffman table: how many codes there are of each length, and what they stand for."""

    counts: list[int]
    symbols: list[int]

    def payload(self) -> bytes:
        return bytes(self.counts) + bytes(self.symbols)

    def words(self) -> dict[int, str]:
        """The code of each symbol, in 0 and 1."""
        found: dict[int, str] = {}
        code, symbols = 0, iter(self.symbols)
        for length, count in enumerate(self.counts, 1):
            for _ in range(count):
                found.setdefault(next(symbols), format(code, f"0{length}b"))
                code += 1
            code <<= 1
        return found


def segment(marker: int, payload: bytes) -> bytes:
    """One of those that say how long they are."""
    return struct.pack(">BBH", 0xFF, marker, (len(payload) + 2) & 0xFFFF) + payload


def huffman(place: int, payload: bytes) -> bytes:
    """Define the table of a place: 0 to 3 for DC, 16 to 19 for AC."""
    return segment(0xC4, bytes([place]) + payload)


def broken_codes(rng: Random) -> bytes:
    """Of a table that no prefix code has: too many codes of some lengths, now and then more than 256 in all."""
    counts = [0] * 16
    for _ in range(rng.randint(1, 4)):
        counts[rng.randrange(16)] = rng.choice((1, 2, 3, 20, 200, 255))
    return bytes(counts) + rng.randbytes(min(256, sum(counts)))


def quantisation(rng: Random, place: int) -> bytes:
    """Define a table of a place, of one or of two bytes."""
    wide = rng.random() < 0.1
    values = [rng.choice((1, 2, rng.randint(1, 40), rng.randint(0, 65535 if wide else 255))) for _ in range(64)]
    return segment(0xDB, bytes([wide << 4 | place]) + struct.pack(">64H" if wide else ">64B", *values))


def exif(rng: Random) -> bytes:
    """An orientation, in either order of bytes; some of no meaning."""
    order = rng.choice("<>")
    entry = struct.pack(order + "HHIHH", 0x0112, rng.choice((3, 3, 3, 4)), 1, rng.randint(0, 9), 0)
    block = (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, 1) + entry + bytes(4)
    return segment(0xE1, b"Exif\0\0" + block)


def jpeg(rng: Random) -> bytes:
    """One JPEG."""
    if rng.random() < 0.2:
        return _of_pillow(rng)
    factors = rng.choice(_USUAL)
    if rng.random() < 0.15:
        factors = [(rng.randint(1, 4), rng.randint(1, 4)) for _ in range(rng.choice((1, 2, 3, 3, 4)))]
    parts = [Part(name, *pair) for name, pair in enumerate(factors, 1)]
    height, width = (
        rng.choice((1, 8, 17, rng.randint(1, 40), rng.randint(1, 150), rng.randint(40, 120))) for _ in range(2)
    )
    across, down = max(part.across for part in parts), max(part.down for part in parts)
    units = _over(width, 8 * across)
    interval = rng.choice((0, 0, 1, 2, units, rng.randint(1, 9)))
    if rng.random() < 0.3:  # of the kind that is indexed
        interval = max(n for n in range(1, 9) if units % n == 0)
    tables = {place: _codes(rng, place) for place in (0, 1, 16, 17)}
    frame = bytes([rng.choice((8,) * 20 + (12,))]) + struct.pack(">HHB", height, width, len(parts))
    frame += b"".join(bytes([part.name, part.across << 4 | part.down, rng.randrange(2)]) for part in parts)
    head = [*(quantisation(rng, place) for place in (0, 1)), segment(rng.choice((0xC0, 0xC0, 0xC1)), frame)]
    head += [huffman(place, codes.payload()) for place, codes in tables.items()]
    if interval:
        head.append(segment(0xDD, struct.pack(">H", interval)))
    if rng.random() < 0.3:
        head.insert(0, exif(rng))
    pieces = [b"\xff\xd8", *head]
    for chosen in _order_of_scans(rng, parts):
        pieces += _scan(rng, chosen, (height, width), (down, across), tables, interval)
        if rng.random() < 0.3:
            pieces.append(_between(rng))
    return b"".join(pieces) + b"\xff\xd9"


def record(rng: Random) -> bytes:
    """The record of one that can be indexed."""
    while (made := record_of(0, jpeg(rng), rng.choice((1, 1, 6)))) is None:
        pass
    return made


def _of_pillow(rng: Random) -> bytes:
    height, width = rng.randint(1, 100), rng.randint(1, 100)
    noise = np.frombuffer(rng.randbytes(48), np.uint8).reshape(4, 4, 3)
    image = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.convert(rng.choice(("RGB", "RGB", "RGB", "L", "CMYK"))).save(
        file, "JPEG", quality=rng.choice((5, 75, 100)), progressive=rng.random() < 0.5, optimize=rng.random() < 0.5,
        subsampling=rng.randrange(3), restart_marker_blocks=rng.choice((0, 0, 1, 5)),
    )  # fmt: skip
    return file.getvalue()


def _order_of_scans(rng: Random, parts: list[Part]) -> list[list[Part]]:
    kind = rng.random()
    if kind < 0.7:
        return [parts]
    if kind < 0.8:
        return [[part] for part in parts]
    some = (sorted(rng.sample(parts, rng.randint(1, len(parts)))) for _ in range(rng.randint(1, 3)))
    return [*some, parts] if kind < 0.9 else list(some)


def _between(rng: Random) -> bytes:
    """What may stand behind a scan."""
    place = rng.choice((0, 1, 16, 17))
    kind = rng.randrange(6)
    if kind < 2:
        return huffman(place, broken_codes(rng))
    if kind == 5:
        return huffman(place, _codes(rng, place).payload())
    if kind == 2:
        return quantisation(rng, rng.randrange(2))
    if kind == 3:
        return segment(0xDD, struct.pack(">H", rng.randrange(4)))
    return segment(0xFE, rng.randbytes(rng.randrange(9)))


def _codes(rng: Random, place: int) -> Codes:
    """A table for DC or AC, of any shape that a prefix code has."""
    if place < 16:
        symbols = rng.sample(range(12), rng.randint(1, 12))
    else:
        symbols = [run << 4 | size for run in range(rng.choice((1, 4, 16))) for size in range(1, 11)]
        symbols = [0, *rng.sample([*symbols, 0xF0], min(len(symbols) + 1, rng.choice((1, 5, 30, 161))))]
    lengths = [0]  # of the leaves of a tree; the last and deepest, all ones, is no code
    while len(lengths) < len(symbols) + 1:
        at = rng.choice([k for k, length in enumerate(lengths) if length < 16][: rng.choice((2, 8, 300))])
        lengths[at : at + 1] = [lengths[at] + 1] * 2
    lengths = sorted(lengths)[:-1]
    return Codes([lengths.count(length) for length in range(1, 17)], symbols)


def _scan(
    rng: Random, parts: list[Part], size: tuple[int, int], most: tuple[int, int], tables: dict[int, Codes],
    interval: int,
) -> list[bytes]:  # fmt: skip
    """A scan of these components: its header, and its segments with the markers between them."""
    chosen = {part: (rng.choice((0, 1)), rng.choice((16, 17))) for part in parts}
    header = bytes([len(parts)])
    for part, (dc, ac) in chosen.items():
        header += bytes([part.name, dc << 4 | ac & 15])
    words = {place: list(codes.words().items()) for place, codes in tables.items()}
    if len(parts) == 1:  # an MCU is one block, and those beyond the edge are left out
        sides = zip(size, (parts[0].down, parts[0].across), most, strict=True)
        rows, columns = (_over(_over(side * its, greatest), 8) for side, its, greatest in sides)
        blocks = list(chosen.values())
    else:
        rows, columns = (_over(side, 8 * greatest) for side, greatest in zip(size, most, strict=True))
        blocks = [places for part, places in chosen.items() for _ in range(part.across * part.down)]
    fills = rng.random() < 0.2
    ends = (
        0.0 if fills else rng.choice((0.0, 0.05, 0.5, 0.9))
    )  # how soon a block does; dense ones take libjpeg's fast way
    pieces, bits, mark = [segment(0xDA, header + b"\0\x3f\0")], [], 0
    for unit in range(1, rows * columns + 1):
        for dc, ac in blocks:
            bits.append(_block(rng, words[dc], words[ac], ends))
        if unit == rows * columns or (interval and unit % interval == 0):
            pieces.append(_stuffed(rng, "".join(bits), fills))
            bits = []
            if unit < rows * columns:
                pieces.append(bytes([0xFF, 0xD0 + mark % 8]))
                mark += 1
    return pieces


def _over(length: int, unit: int) -> int:
    return (length + unit - 1) // unit


def _block(rng: Random, dc: list[tuple[int, str]], ac: list[tuple[int, str]], ends: float) -> str:
    size, word = rng.choice(dc)
    bits = word + _number(rng, size)
    place, end = 1, ac[[symbol for symbol, _ in ac].index(0)][1]
    while place < 64:
        symbol, word = rng.choice(ac)
        run = (symbol >> 4) + 1
        if rng.random() < ends or symbol == 0 or place + run > 64:
            return bits + end
        bits += word + _number(rng, symbol & 15)
        place += run
    return bits


def _number(rng: Random, size: int) -> str:
    return format(rng.getrandbits(size), f"0{size}b") if size else ""


def _stuffed(rng: Random, bits: str, fills: bool) -> bytes:
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""
    return data.replace(b"\xff", b"\xff" * rng.randint(1, 3) + b"\0" if fills else b"\xff\0")
