from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.pack.transcode import Transcoder, transcode
from prepserver.protocol import packed
from prepserver.protocol.packed import (
    HEAD_BYTES,
    INDEXED,
    KEPT,
    PIXEL_UNITS,
    PIXELS,
    SKIPPED,
    BrokenRecordError,
    is_whole,
    kept_record,
    pixels_record,
    read_head,
    read_record,
    sample_crc,
    skipped_record,
)
from tests.support.photos import jpeg

INDEXED_RECORD = transcode(5, jpeg(50, 70), Transcoder(False)).record


def test_a_kept_file_comes_back_to_the_last_byte() -> None:
    head, lengths, image = read_record(kept_record(3, b"anything"))
    assert (head.kind, head.sample, bytes(lengths), bytes(image)) == (KEPT, 3, b"", b"anything")


def test_a_skipped_sample_says_why() -> None:
    head, _, image = read_record(skipped_record(9, "no permission: \udcff"))
    assert (head.kind, head.sample) == (SKIPPED, 9)
    assert bytes(image) == b"no permission: \\udcff"


def test_an_indexed_record_knows_its_geometry() -> None:
    head, lengths, image = read_record(INDEXED_RECORD)
    assert (head.kind, head.sample, head.height, head.width, head.unit) == (INDEXED, 5, 50, 70, (16, 16))
    assert head.interval == 1  # five MCUs across
    assert head.segments == 20 == len(lengths) // 2
    assert sum(memoryview(lengths).cast("H")) == len(image) - head.scan_at


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, len(INDEXED_RECORD) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(at: int, bit: int) -> None:
    record = bytearray(INDEXED_RECORD)
    record[at] ^= 1 << bit
    assert not is_whole(bytes(record))
    head, _, _ = read_record(INDEXED_RECORD)
    if at < HEAD_BYTES + 2 * head.segments:
        with pytest.raises(BrokenRecordError):
            read_record(bytes(record))


@given(cut=st.integers(0, len(INDEXED_RECORD) - 1))
def test_no_part_of_a_record_is_a_record(cut: int) -> None:
    assert not is_whole(INDEXED_RECORD[:cut])


@settings(max_examples=300)
@given(data=st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(data: bytes) -> None:
    for garbage in (data, INDEXED_RECORD[:4] + data):
        with pytest.raises(BrokenRecordError):
            read_record(garbage)


def test_a_head_of_contradicting_numbers_is_refused() -> None:
    """It does not matter what its checksum says."""
    # Interval 3 does not divide the five MCUs of a row.
    record = bytearray(INDEXED_RECORD)
    record[12:14] = (3).to_bytes(2, "little")
    with pytest.raises(BrokenRecordError, match="head is damaged"):
        read_head(bytes(record))


def test_a_kept_record_of_segments_is_refused() -> None:
    record = bytearray(kept_record(3, b"anything"))
    record[20] = 1
    with pytest.raises(BrokenRecordError, match="head is damaged"):
        read_head(bytes(record))


def test_a_sample_of_several_records_has_one_checksum_of_all() -> None:
    one, other = (read_head(kept_record(3, data)) for data in (b"image", b"mask"))
    assert sample_crc([one]) == one.image_crc
    assert len({sample_crc(heads) for heads in ([one], [other], [one, other])}) == 3


@pytest.mark.parametrize(("form", "size"), [("yuv420", 6 * 5 + 2 * 3 * 3), ("rgb", 3 * 6 * 5)])
def test_pixels_know_their_size_and_form(form: str, size: int) -> None:
    record = pixels_record(4, (6, 5), form, bytes(range(size)))
    head, lengths, image = read_record(record)
    assert (head.kind, head.sample, head.height, head.width, head.unit) == (PIXELS, 4, 6, 5, PIXEL_UNITS[form])
    assert (bytes(lengths), bytes(image)) == (b"", bytes(range(size)))


@pytest.mark.parametrize("change", [{"height": 0}, {"height": 7}, {"unit": (2, 1)}, {"segments": 1}])
def test_pixels_that_do_not_fit_their_head_are_refused(change: dict[str, Any]) -> None:
    head, _, image = read_record(pixels_record(4, (6, 5), "rgb", bytes(90)))
    with pytest.raises(BrokenRecordError):
        read_record(packed.pack_record(replace(head, **change), b"", bytes(image)))
