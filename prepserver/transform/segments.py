"""The index of a JPEG with restart markers: where its segments are, read from the JPEG itself.

The index comes from the JPEG alone, whoever wrote the restart markers. The packer stores a JPEG that cannot be cut as
an ordinary file. A reader checks each record, because a part from a false index may decode without a complaint, to
other pixels than the whole.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from prepserver.protocol.packed import INDEXED, MAX_SEGMENT_MCUS, Head, IndexedScan, pack_record
from prepserver.transform.header import JpegHeader, read_header
from prepserver.transform.orientation import UPRIGHT

SEQUENTIAL = (0xC0, 0xC1)
PROGRESSIVE = 0xC2
_UNITS = (8, 16, 32)
_END = 0xD9


def frame_of(jpeg: bytes, header: JpegHeader) -> int:
    """Return the second byte of a JPEG's frame marker: 0xC0 baseline, 0xC2 progressive and so on."""
    return jpeg[header.height_at - 4]


def unit_of(header: JpegHeader) -> tuple[int, int]:
    """Return the (height, width) in pixels of an MCU of a scan that holds all components."""
    # A scan of a single component has MCUs of one block, whatever its sampling factors say (T.81, A.2.2).
    return (8, 8) if header.components == 1 else header.unit


def interval_of(width: int, unit_width: int, at_most: int) -> int:
    """Return the MCUs of a segment: the largest number up to `at_most` that divides a row of MCUs; widths in pixels."""
    across = -(-width // unit_width)
    return max(interval for interval in range(1, min(at_most, MAX_SEGMENT_MCUS) + 1) if across % interval == 0)


def record_of(sample: int, jpeg: bytes, orientation: int) -> bytes | None:
    """Return the record of a JPEG with restart markers; `orientation` is the EXIF orientation of the original.

    Returns:
        None if the JPEG cannot be cut: it must have exactly one scan, of all components, with restart markers at a
            constant interval that divides a row's MCUs.
    """
    found = _index_of(jpeg)
    if found is None:
        return None
    head, lengths = found
    head = replace(head, sample=sample, image_crc=zlib.crc32(jpeg), orientation=orientation)
    return pack_record(head, lengths, jpeg)


def is_true(scan: IndexedScan) -> bool:
    """Say whether the index of a record is exactly the one of its JPEG."""
    head = scan.head
    said = replace(head, sample=0, image_crc=0, orientation=UPRIGHT), bytes(scan.lengths)
    return _index_of(bytes(scan.jpeg)) == said


def _index_of(jpeg: bytes) -> tuple[Head, bytes] | None:
    """Return the head of this JPEG's record, as far as the JPEG determines it, and the lengths of its segments."""
    header = read_header(jpeg)
    if header is None or frame_of(jpeg, header) not in SEQUENTIAL or header.components not in (1, 3):
        return None
    unit, interval = unit_of(header), header.restart_interval
    across, down = -(-header.width // unit[1]), -(-header.height // unit[0])
    if not 1 <= interval <= MAX_SEGMENT_MCUS or across % interval or not set(unit) <= set(_UNITS):
        return None
    lengths = _lengths(jpeg, header.scan_at, down * across // interval)
    if lengths is None:
        return None
    head = Head(
        kind=INDEXED,
        sample=0,
        image_bytes=len(jpeg),
        image_crc=0,
        unit=unit,
        height=header.height,
        width=header.width,
        interval=interval,
        height_at=header.height_at,
        scan_at=header.scan_at,
        segments=len(lengths) // 2,
    )
    return head, lengths


def _lengths(jpeg: bytes, scan_at: int, count: int) -> bytes | None:
    """Return the length of each of the `count` segments with the marker at its end, as a record stores them."""
    scan = np.frombuffer(jpeg, np.uint8)[scan_at:]
    is_mark = scan[:-1] == 0xFF
    is_mark &= scan[1:] != 0
    ends = np.flatnonzero(is_mark) + 2
    marks = scan[ends - 1]
    if len(ends) != count or ends[-1] != len(scan) or marks[-1] != _END:
        return None
    if not np.array_equal(marks[:-1], 0xD0 + np.arange(count - 1) % 8):
        return None
    lengths = np.diff(ends, prepend=0)
    return lengths.astype("<u2").tobytes() if lengths.max() < 1 << 16 else None
