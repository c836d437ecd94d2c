"""A JPEG's header, read without decoding: size, orientation, and whether the bottom may be left undecoded.

A size over the limit is refused from the header alone. The reader is strict: it returns None for anything odd, and
leaves that to Pillow.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from prepserver.transform.orientation import UPRIGHT, from_exif

_SEQUENTIAL = (0xC0, 0xC1)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # all SOFn; the three are DHT, JPG, DAC
_BARE = frozenset((0x00, 0x01, 0xFF, *range(0xD0, 0xDA)))  # markers without a length, which do not belong here
_EXIF = b"Exif\0\0"
_MARKER = re.compile(rb"\xff[^\x00]", re.DOTALL)
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # neither a stuffed byte, nor a fill byte, nor a restart
_MAX_RESTARTS = 1024
_MOST_COMPONENTS = 4
_FACTORS = range(1, 5)


class JpegHeader(NamedTuple):
    """The content of the segments before the first scan."""

    height: int  # rows as stored, before any orientation
    width: int  # columns as stored
    components: int  # 1 grey, 3 colour, 4 CMYK
    orientation: int  # EXIF orientation, 1 to 8
    height_at: int  # offset in bytes of the two bytes of the height
    scan_at: int  # offset in bytes of the first scan's entropy-coded data
    trimmable: bool  # sequential Huffman, 8 bits, all components in one scan
    unit: tuple[int, int]  # (height, width) of an MCU in pixels
    restart_interval: int  # MCUs between restart markers; 0 for none


def read_header(data: bytes) -> JpegHeader | None:
    """Return the header of a JPEG (ITU T.81 annex B), in a few microseconds; None for other data and odd JPEGs."""
    if data[:2] != b"\xff\xd8":
        return None
    frame: tuple[int, int] | None = None
    orientation, interval, at, end = UPRIGHT, 0, 2, len(data)
    while at + 4 <= end and data[at] == 0xFF:
        marker = data[at + 1]
        after = at + 2 + (data[at + 2] << 8 | data[at + 3])
        if marker in _BARE or after > end or after < at + 4:
            return None
        if marker == 0xDA:
            if after < at + 5:
                return None  # too short to hold the number of components
            return _complete(data, frame, orientation, interval, at, after)
        if marker in _FRAMES:
            if frame is not None or after < at + 10 or after < at + 10 + 3 * data[at + 9]:
                return None
            frame = (marker, at)
        elif marker == 0xE1 and data[at + 4 : at + 10] == _EXIF:
            orientation = from_exif(data[at + 10 : after])
        elif marker == 0xDD and after == at + 6:
            interval = data[at + 4] << 8 | data[at + 5]
        at = after
    return None


def _complete(
    data: bytes, frame: tuple[int, int] | None, orientation: int, interval: int, at: int, after: int
) -> JpegHeader | None:
    """Return the header for the start-of-scan marker at `at`; the scan's data begin at `after`."""
    if frame is None:
        return None
    marker, start = frame
    precision, components = data[start + 4], data[start + 9]
    height, width = data[start + 5] << 8 | data[start + 6], data[start + 7] << 8 | data[start + 8]
    sampling = [data[start + 11 + 3 * component] for component in range(components)]
    factors = [(byte & 15, byte >> 4) for byte in sampling]
    # T.81, B.2.2: 1 to 4. No decoder takes other factors, and no arithmetic here has to.
    if not (height and width and factors and all(down in _FACTORS and across in _FACTORS for down, across in factors)):
        return None
    down, across = max(down for down, _ in factors), max(across for _, across in factors)
    return JpegHeader(
        height=height,
        width=width,
        components=components,
        orientation=orientation,
        height_at=start + 5,
        scan_at=after,
        trimmable=marker in _SEQUENTIAL
        and precision == 8
        and data[at + 4] == components
        and (components == 3 or (components == 1 and not interval)),
        unit=(8 * down, 8 * across),
        restart_interval=interval,
    )


def samplings(data: bytes | memoryview, height_at: int) -> list[tuple[int, int]]:
    """Return the sampling factors (down, across) of each component."""
    frame = bytes(data[height_at + 4 : height_at + 5 + 3 * _MOST_COMPONENTS])
    return [(byte & 15, byte >> 4) for byte in frame[2 : 2 + 3 * frame[0] : 3]] if frame else []


class Extent(NamedTuple):
    """How much of a JPEG is decoded for its first rows."""

    height: int  # rows that the frame header must claim
    length: int  # bytes of the file that the decoder sees
    # What follows the last row: `WHOLE` nothing, `LEFT_OVER` further data, `CUT_OFF` an end that is added.
    left_over: int


WHOLE, LEFT_OVER, CUT_OFF = 0, 1, 2


Cut = Callable[[bytes, int, int], int | None]


def extent(data: bytes, header: JpegHeader, rows: int, scale: int = 1, cut: Cut | None = None) -> Extent:
    """Return how much of `data` a decoder must see for its first `rows`, so that it stops there.

    Three quarters of decoding is entropy decoding, row after row, so rows below a crop should not be decoded. The
    height in the frame header is lowered to `rows` plus the rows below that fancy upsampling needs (libjpeg-turbo's
    jdsample.c: one row of chroma, so at most one sampling unit of the image as decoded, at 1/scale).

    The data after that are left over; the decoder only warns of "extraneous bytes before marker 0xd9". With restart
    markers the data are cut off after the last segment needed, so that the same warning cannot come from garbage before
    a restart marker. Even then the scan must end with the end of the image: another marker below the crop may make the
    whole file undecodable, and that must not depend on the crop.

    Returns all of the JPEG if trimming it gains nothing or is not possible. `cut` is `cut_at`, or a faster equivalent.
    """
    unit_height, unit_width = header.unit
    height = rows + unit_height // 8 * scale
    whole = Extent(header.height, len(data), WHOLE)
    if not header.trimmable or height + 2 * unit_height > header.height:
        return whole
    if not header.restart_interval:
        return Extent(height, len(data), LEFT_OVER)
    units = -(-height // unit_height) * -(-header.width // unit_width)
    end = (cut or cut_at)(data, header.scan_at, -(-units // header.restart_interval))
    return whole if end is None else Extent(height, end, CUT_OFF)


def trimmed(data: bytes, header: JpegHeader, needed: Extent) -> bytearray:
    """Return the `needed` extent of `data` as a JPEG."""
    shorter = bytearray(data if needed.length == len(data) else data[: needed.length])
    if needed.left_over == CUT_OFF:
        shorter += b"\xff\xd9"
    shorter[header.height_at : header.height_at + 2] = needed.height.to_bytes(2, "big")
    return shorter


def cut_at(data: bytes, scan_at: int, count: int) -> int | None:
    """Return the offset just after the first `count` segments between restart markers.

    None if there are too many to count, if another marker comes first, or if the scan does not end with the end of the
    image: that may make the whole file undecodable, which must not depend on how much of it is needed.
    """
    if count > _MAX_RESTARTS:
        return None
    for found, match in enumerate(_MARKER.finditer(data, scan_at), 1):
        if not 0xD0 <= data[match.start() + 1] <= 0xD7:
            return None
        if found == count:
            after = _AFTER_SCAN.search(data, match.start())
            return match.start() if after is not None and after[0] == b"\xff\xd9" else None
    return None
