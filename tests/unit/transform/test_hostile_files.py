"""Files made to harm: each is decoded in a process of its own, so that a crash is a failed assertion."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from prepserver.protocol.packed import INDEXED, Head, pack_record
from prepserver.transform.header import read_header
from tests.support import forked
from tests.support.photos import jpeg

pytestmark = pytest.mark.once

_DECODE = """
import hashlib, json, os, resource, sys
from pathlib import Path
import numpy as np
from prepserver.pipeline.ops import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.packed import IndexedScan, read_record
from prepserver.transform import BadSample, RowMaker, SampleKey, native
from tests.support.images import make_rows

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

data = Path(sys.argv[1]).read_bytes()
if sys.argv[2] == "packed":
    data = IndexedScan(*read_record(data))
makers = [
    RowMaker(Pipeline.from_ops(ops), 0)
    for ops in ([RandomResizedCrop(24, scale=(0.3, 1.0)), RandomHorizontalFlip()], [RandomCrop(8)],
                [Resize(32), CenterCrop(28)])
]
found, before = {}, (native.path(), peak_mib())[1]
for wish in ("", "0"):
    os.environ["PREPSERVER_NATIVE"] = wish
    native.forget()
    rows = found[native.path().name] = []
    for maker in makers:
        for number in range(8):
            row = np.zeros(maker.fields[0].shape, maker.fields[0].dtype)
            try:
                make_rows(data, SampleKey(1, 0, number), [(maker, row)])
                rows.append(hashlib.sha256(row).hexdigest())
            except BadSample as bad:
                rows.append(bad.reason)
json.dump({"rows": found, "grown_mib": peak_mib() - before}, sys.stdout)
"""


def decoded(file: Path, data: bytes, kind: str = "plain") -> tuple[list[str], int]:
    """Rows, or why there are none, the same by both paths; and by how many MiB making them let a process grow."""
    file.write_bytes(data)
    done = forked.python(_DECODE, str(file), kind)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert all(rows == found["rows"]["pure"] for rows in found["rows"].values())
    return found["rows"]["pure"], found["grown_mib"]


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(body)) + body


def two_scans_and_a_table() -> bytes:
    """Scans Y and Y+Cb+Cr, and behind them a Huffman table with 200 codes of one bit, which no scan names."""
    colour, grey = jpeg(16, 16, "444"), jpeg(16, 16, "Gray")
    of_grey, of_colour = read_header(grey), read_header(colour)
    assert of_grey is not None
    assert of_colour is not None
    front = colour[: colour.index(b"\xff\xda")]
    first = segment(0xDA, bytes((1, 1, 0x00, 0, 63, 0))) + grey[of_grey.scan_at : -2]
    second = colour[len(front) : -2]
    table = b"".join(segment(0xC4, bytes((number, 200, *[0] * 15)) + bytes(200)) for number in (0x00, 0x10))
    return front + first + second + table + b"\xff\xd9"


def packed(image: bytes, side: int, segments: list[bytes], unit: int = 8, interval: int = 2) -> bytes:
    """The record of `image` and what follows it, with right checksums, whatever its head claims."""
    header = read_header(image)
    assert header is not None
    body = image + b"".join(segments)
    head = Head(
        INDEXED, 7, len(body), zlib.crc32(body), 1, (unit, unit), side, side, interval, header.height_at, len(image),
        len(segments),
    )  # fmt: skip
    lengths = np.array([len(one) for one in segments], "<u2").tobytes()
    return pack_record(head, lengths, body)


def test_a_table_that_libjpeg_never_checks_harms_nothing(tmp_path: Path) -> None:
    rows, _ = decoded(tmp_path / "file", two_scans_and_a_table())
    assert rows


def test_nor_does_it_in_a_packed_record(tmp_path: Path) -> None:
    record = packed(two_scans_and_a_table(), 16, [b"\x12\x34\xff\xd0", b"\x12\x34\xff\xd9"])
    rows, _ = decoded(tmp_path / "file", record, "packed")
    assert rows


def test_a_record_that_claims_a_small_image_is_not_decoded_whole(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("L", (8000, 8000), 128).save(file, "JPEG")
    record = packed(file.getvalue(), 16, [b"\x12\x34\xff\xd0", b"\x12\x34\xff\xd9"])
    rows, grown_mib = decoded(tmp_path / "file", record, "packed")
    assert all("(8000, 8000)" in row for row in rows), rows
    assert grown_mib < 60  # its pixels are 183


def tiled_tiff(side: int, tile: int) -> bytes:
    """An image of side x side pixels in one deflated tile of zeros that is much larger."""
    data = zlib.compress(bytes(tile * tile * 3), 9)
    bits = 8 + 2 + 11 * 12 + 4
    entries = [
        (256, 4, 1, side), (257, 4, 1, side), (258, 3, 3, bits), (259, 3, 1, 8), (262, 3, 1, 2), (277, 3, 1, 3),
        (284, 3, 1, 1), (322, 4, 1, tile), (323, 4, 1, tile), (324, 4, 1, bits + 6), (325, 4, 1, len(data)),
    ]  # fmt: skip
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, 11) + directory + bytes(4) + struct.pack("<HHH", 8, 8, 8) + data


def test_a_tiff_of_one_huge_tile_is_not_decoded(tmp_path: Path) -> None:
    rows, grown_mib = decoded(tmp_path / "huge", tiled_tiff(16, 8192))
    assert grown_mib < 60  # the tile has 192
    assert all("8192x8192" in row for row in rows), rows
    rows, _ = decoded(tmp_path / "usual", tiled_tiff(16, 256))
    assert all(len(row) == 64 for row in rows), rows
