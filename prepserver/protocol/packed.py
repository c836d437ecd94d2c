"""A record of a packed dataset: one column of a sample, as bytes in a shard.

`prepserver.pack` writes it, `prepserver.source` reads it and `prepserver.transform` decodes it. A record is a head, the
lengths of the scan's segments, and an image file. The image of an indexed record is a whole JPEG with a restart marker
every few MCUs, so that the part under a crop can be cut out. The image of a pixels record needs no decoding, and that
of a kept record is the original file. Records follow each other in a shard without gaps: a shard whose writer was
killed is read up to its first incomplete record. If a sample has further columns, such as a mask, a kept record for
each of them follows that of the image.

Little-endian on every machine.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = b"PSR\x01"

KEPT = 0
INDEXED = 1
SKIPPED = 2
"""A sample that could not be read when the dataset was packed; the body is the reason, in UTF-8. A packer needs it to
continue an interrupted run; readers never see it."""
PIXELS = 3

PIXEL_UNITS = {"rgb": (1, 1), "yuv420": (2, 2)}
"""How pixels are stored, and the (height, width) in pixels that a sample of chroma stands for."""

# Magic, kind, orientation, unit height, unit width, height, width, MCUs in a segment, offsets of the height and of the
# scan in the JPEG, segments, bytes of the image file, number of the sample in its source, CRC of the image.
_HEAD = struct.Struct("<4sBBBBHHHHIIIQI")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CRC.size

MAX_SEGMENTS = 1 << 26
"""Blocks of the largest possible JPEG, 65535 x 65535 pixels; a head that claims more is damaged."""

MAX_SEGMENT_MCUS = 8
"""Longest segment: at most 35 kB (10 blocks per MCU, 27 bits per coefficient, all stuffed), so lengths fit 16 bits."""

_KINDS = (KEPT, INDEXED, SKIPPED, PIXELS)


class BrokenRecordError(ValueError):
    """These bytes are not a whole record of this version; the text says why, without a path."""


@dataclass(slots=True)  # one is made for each sample, and a frozen one takes three times as long
class Head:
    """The fixed part of a record."""

    kind: int  # `KEPT`, `INDEXED`, `SKIPPED` or `PIXELS`
    sample: int  # number of the sample in the source that was packed
    image_bytes: int  # length of the image file
    image_crc: int  # CRC-32 of the image file
    orientation: int = 1  # EXIF orientation, 1 to 8, of an indexed image, whose own EXIF block is gone
    # of indexed images and pixels, else 0
    unit: tuple[int, int] = (0, 0)  # (height, width) of an MCU in pixels, or one of `PIXEL_UNITS`
    height: int = 0  # rows as stored
    width: int = 0  # columns as stored
    # of indexed images, else 0
    interval: int = 0  # MCUs in a segment; divides the MCUs of a row
    height_at: int = 0  # offset in bytes of the height in the JPEG's frame header; the width follows
    scan_at: int = 0  # offset in bytes of the first segment in the JPEG
    segments: int = 0

    @property
    def record_bytes(self) -> int:
        """Length of the whole record."""
        return HEAD_BYTES + 2 * self.segments + self.image_bytes


@dataclass(slots=True)
class IndexedScan:
    """An indexed JPEG in memory, in place of a sample's encoded bytes."""

    head: Head  # its head, checked
    # bytes of each segment including the marker at its end, as 16 bits unsigned little-endian; their sum is the length
    # of the scan
    lengths: memoryview
    jpeg: memoryview  # the whole JPEG


@dataclass(slots=True)
class StoredPixels:
    """An image stored as pixels, in place of a sample's encoded bytes."""

    head: Head  # its head, checked
    pixels: memoryview  # RGB, or the planes Y, U and V, line by line; chroma has half the sides, rounded up


def kept_record(sample: int, image: bytes) -> bytes:
    """The record of a file that is served as it is."""
    return pack_record(Head(KEPT, sample, len(image), zlib.crc32(image)), b"", image)


def skipped_record(sample: int, reason: str) -> bytes:
    """The record of a sample that is left out, with the reason."""
    body = reason.encode("utf-8", "backslashreplace")
    return pack_record(Head(SKIPPED, sample, len(body), zlib.crc32(body)), b"", body)


def pixels_record(sample: int, size: tuple[int, int], form: str, pixels: bytes) -> bytes:
    """The record of an upright image of (height, width) in one of the forms of `PIXEL_UNITS`."""
    height, width = size
    head = Head(PIXELS, sample, len(pixels), zlib.crc32(pixels), 1, PIXEL_UNITS[form], height, width)
    return pack_record(head, b"", pixels)


def read_head(data: bytes | memoryview, at: int = 0) -> Head:
    """Reads and checks the head of the record at `at`, and no more; raises `BrokenRecordError` if it is not valid."""
    if len(data) - at < HEAD_BYTES:
        raise BrokenRecordError("the record is cut off")
    (magic, kind, orientation, unit_height, unit_width, height, width, interval, height_at, scan_at, segments,
     image_bytes, sample, image_crc) = _HEAD.unpack_from(data, at)  # fmt: skip
    if magic != MAGIC or kind not in _KINDS:
        raise BrokenRecordError("not a record of this version")
    if kind not in (INDEXED, PIXELS):
        if segments:
            raise BrokenRecordError("the record's head is damaged")
        return Head(kind, sample, image_bytes, image_crc)
    head = Head(kind, sample, image_bytes, image_crc, orientation, (unit_height, unit_width), height, width, interval,
                height_at, scan_at, segments)  # fmt: skip
    if not (_is_indexed(head) if kind == INDEXED else _is_pixels(head)):
        raise BrokenRecordError("the record's head is damaged")
    return head


def read_record(data: bytes | memoryview) -> tuple[Head, memoryview, memoryview]:
    """Splits a record into head, lengths and image (views of `data`) in a few microseconds.

    It checks everything but the image, whose CRC the caller compares.

    Raises:
        BrokenRecordError: Not one whole record.
    """
    head = read_head(data)
    if len(data) != head.record_bytes:
        raise BrokenRecordError(f"the record has {len(data)} bytes and should have {head.record_bytes}")
    view = memoryview(data)
    front = HEAD_BYTES + 2 * head.segments
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if crc != _front_crc(view[: _HEAD.size], view[HEAD_BYTES:front]):
        raise BrokenRecordError("the record's checksum is wrong")
    return head, view[HEAD_BYTES:front], view[front:]


def is_whole(data: bytes | memoryview) -> bool:
    """Whether these bytes are one intact record, image included."""
    try:
        head, _, image = read_record(data)
    except BrokenRecordError:
        return False
    return zlib.crc32(image) == head.image_crc


def sample_crc(heads: Sequence[Head]) -> int:
    """The checksum of all records of a sample; that of the image if there is only one."""
    crc = heads[0].image_crc
    for head in heads[1:]:
        crc = zlib.crc32(head.image_crc.to_bytes(4, "little"), crc)
    return crc


def _is_indexed(head: Head) -> bool:
    """Whether the numbers of an indexed head agree with each other, so that no read by them is out of bounds."""
    (unit_height, unit_width), interval = head.unit, head.interval
    if not (1 <= head.orientation <= 8 and head.height and head.width and 1 <= interval <= MAX_SEGMENT_MCUS):
        return False
    if unit_height not in (8, 16, 32) or unit_width not in (8, 16, 32):
        return False
    across, down = -(-head.width // unit_width), -(-head.height // unit_height)
    return (
        across % interval == 0
        and head.segments == down * (across // interval) <= MAX_SEGMENTS
        and head.height_at >= 4
        and head.height_at + 4 < head.scan_at < head.image_bytes
    )


def _is_pixels(head: Head) -> bool:
    """Whether the numbers of a head of pixels agree with the length of the image."""
    (down, across), height, width = head.unit, head.height, head.width
    if head.unit not in PIXEL_UNITS.values() or not (height and width) or head.segments:
        return False
    return head.image_bytes == height * width + 2 * -(-height // down) * -(-width // across)


def pack_record(head: Head, lengths: bytes, image: bytes) -> bytes:
    """The record of an image; only an indexed JPEG has `lengths` (see `IndexedScan`)."""
    fixed = _HEAD.pack(
        MAGIC, head.kind, head.orientation, *head.unit, head.height, head.width, head.interval, head.height_at,
        head.scan_at, head.segments, head.image_bytes, head.sample, head.image_crc,
    )  # fmt: skip
    return b"".join((fixed, _CRC.pack(_front_crc(fixed, lengths)), lengths, image))


def _front_crc(fixed: bytes | memoryview, lengths: bytes | memoryview) -> int:
    return zlib.crc32(lengths, zlib.crc32(fixed))
