"""Cuts a small JPEG of just the needed part out of an indexed one, without decoding.

Three quarters of decoding is entropy decoding, and an ordinary scan can only be read from its begin. Between two
restart markers, though, MCUs are coded as if they stood alone (ITU T.81, E.1.4 and F.1.1.5.1). If there is a marker
every few MCUs and every MCU row begins with one, the segments under a crop, joined and renumbered after a frame header
of the region's size, are a JPEG of their own, with the same pixels.

Bytes to bytes, no decoder. Costs about 25 us for a photo of ImageNet's size.
"""

from __future__ import annotations

import numpy as np

from prepserver.protocol.packed import IndexedScan
from prepserver.transform.stage import Box

# RST0 .. RST7 in turn, for as many segments as a crop of a usual photo has.
_MARKS = np.resize(np.arange(0xD0, 0xD8, dtype=np.uint8), 1 << 14)
_END = 0xD9


def cut(scan: IndexedScan, part: Box, scale: int = 1) -> tuple[bytearray | memoryview, Box]:
    """Return a JPEG of the segments under `part` and the margin that upsampling needs around it, and what it shows.

    libjpeg-turbo interpolates subsampled chroma from the next sample on either side (jdsample.c, the "fancy" kinds), so
    the margin is one such sample, and none without subsampling. The pixels inside the part are those of the whole
    image; in the margin they may differ.

    The record of `scan` must be true (`segments.is_true`); the part lies within the image and is not empty. It will be
    decoded at 1/`scale`, so a sample of chroma covers `scale` times as many pixels.
    """
    head = scan.head
    unit_height, unit_width = head.unit
    segment_width = unit_width * head.interval
    across = -(-head.width // segment_width)
    sample_height, sample_width = unit_height // 8 * scale, unit_width // 8 * scale
    margin_rows = sample_height if sample_height > scale else 0
    margin_columns = sample_width if sample_width > scale else 0
    last_row = min(head.height, part.bottom + margin_rows)
    first_unit, end_unit = max(0, part.top - margin_rows) // unit_height, -(-last_row // unit_height)
    first = max(0, part.left - margin_columns) // segment_width
    end = -(-min(head.width, part.right + margin_columns) // segment_width)
    last_column = min(head.width, end * segment_width)
    # libjpeg does not interpolate fewer than three samples of chroma in a row.
    if first and last_column - first * segment_width <= 2 * sample_width:
        first -= 1
    shown = Box(first_unit * unit_height, first * segment_width, last_row, last_column)
    if shown == (0, 0, head.height, head.width):
        return scan.jpeg, shown

    lengths = np.frombuffer(scan.lengths, "<u2")
    ends = np.cumsum(lengths, dtype=np.int64)
    lengths = lengths.reshape(-1, across)[first_unit:end_unit, first:end]
    ends = ends.reshape(-1, across)[first_unit:end_unit, first:end]
    begins = ends[:, 0] - lengths[:, 0] + head.scan_at
    jpeg, frame = scan.jpeg, bytearray(scan.jpeg[: head.scan_at])
    height, width = shown.bottom - shown.top, shown.right - shown.left
    frame[head.height_at : head.height_at + 4] = (height << 16 | width).to_bytes(4, "big")
    pieces: list[bytes | bytearray | memoryview] = [frame]
    if end - first == across:
        pieces.append(jpeg[begins[0] : ends[-1, -1] + head.scan_at])
    else:
        pieces += [
            jpeg[begin:after]
            for begin, after in zip(begins.tolist(), (ends[:, -1] + head.scan_at).tolist(), strict=True)
        ]
    joined = bytearray().join(pieces)
    # Each segment ends in its marker; the last byte is the marker's number.
    marks = np.cumsum(lengths.ravel(), dtype=np.int64)
    marks += head.scan_at - 1
    count = len(marks)
    view = np.frombuffer(joined, np.uint8)
    view[marks] = _MARKS[:count] if count <= len(_MARKS) else np.resize(_MARKS, count)
    view[-1] = _END
    return joined, shown
