"""The compiled path against the pure one: the same bytes, the same verdicts, and no harm from hostile files."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image, _imaging

from prepserver.pipeline.ops import CenterCrop, Decode, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.packed import HEAD_BYTES, IndexedScan
from prepserver.transform import BadSample, RowMaker, SampleKey, native
from prepserver.transform.decode import Encoded
from prepserver.transform.header import WHOLE, Extent, cut_at, extent, read_header
from prepserver.transform.native import functions, trial
from prepserver.transform.native.compiled import VECTORS, CropRecipe, Kernels, pitch_of
from prepserver.transform.native.questions import trial_questions
from prepserver.transform.orientation import turned
from prepserver.transform.resize import resize
from prepserver.transform.stage import Box
from tests.support.broken_kernels import broken_library
from tests.support.complete import JPEGTRAN, missing
from tests.support.images import make_rows
from tests.support.photos import PILLOW_SUBSAMPLINGS, indexed
from tests.support.photos import SUBSAMPLINGS as ALL_SUBSAMPLINGS
from tests.support.photos import jpeg as drawn

pytestmark = pytest.mark.once

Pixels = npt.NDArray[np.uint8]
Photo = Callable[..., Pixels]
Maker = Callable[..., bytes]
PathOf = Callable[..., Any]

relaxed = settings(max_examples=80, deadline=None)
KINDS: dict[str, dict[str, Any]] = {"restarts": {"restart_marker_rows": 1}, "progressive": {"progressive": True}}
SUBSAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]
INDEXED_SUBSAMPLINGS = PILLOW_SUBSAMPLINGS if JPEGTRAN is None else ALL_SUBSAMPLINGS


@pytest.fixture(scope="module")
def kernels(path_of: PathOf) -> Iterator[Kernels]:
    with path_of("native", anew=True):
        found = native.kernels()
        assert found is not None
        if not found.own_entropy:
            missing(f"no Huffman decoder of our own: {native.path().reason}")
        yield found


def region(kernels: Kernels, data: bytes, box: Box, scale: int = 1) -> Pixels | None:
    """What the compiled decoder makes of it, in a buffer of noise, with nothing written behind its end."""
    header = read_header(data)
    assert header is not None
    needed, box = extent(data, header, box.bottom, scale), box.over(scale)
    nbytes = (box.bottom - box.top + 1) * pitch_of(box.right - box.left) * 3
    buffer = np.random.default_rng(0).integers(0, 256, nbytes + 64, dtype=np.uint8)
    behind = buffer[nbytes:].copy()
    image = kernels.region(data, header, needed, box, buffer, scale)
    assert np.array_equal(buffer[nbytes:], behind)
    return image


@relaxed
@given(st.data(), st.sampled_from(["plain", "restarts", "progressive", "exif", "grey", "cmyk"]), st.integers(0, 4))
def test_a_header_is_read_number_for_number(
    kernels: Kernels, photo: Photo, saved: Maker, data: st.DataObject, kind: str, changes: int
) -> None:
    options: dict[str, Any] = KINDS.get(kind, {})
    exif = Image.Exif()
    exif[0x0112] = data.draw(st.integers(0, 9))
    if kind == "exif":
        options = {"exif": exif.tobytes()}
    image = Image.fromarray(photo(40, 50)).convert({"grey": "L", "cmyk": "CMYK"}.get(kind, "RGB"))
    made = io.BytesIO()
    image.save(made, "JPEG", **options)
    file = bytearray(made.getvalue())
    head = file.index(b"\xff\xda") + 16
    for _ in range(changes):
        file[data.draw(st.integers(0, head - 1))] = data.draw(st.integers(0, 255))
    for end in {len(file), data.draw(st.integers(0, head))}:
        part = bytes(file[:end])
        assert kernels.header(part) == read_header(part)


@pytest.mark.parametrize("factors", [0x00, 0x01, 0x10, 0x15, 0x51, 0xFF])
def test_sampling_factors_that_no_decoder_takes_are_none(
    kernels: Kernels, path_of: PathOf, jpeg: Maker, photo: Photo, factors: int
) -> None:
    file = bytearray(jpeg(photo(90, 60), "444"))
    header = read_header(bytes(file))
    assert header is not None
    for component in range(3):
        file[header.height_at + 6 + 3 * component] = factors
    assert kernels.header(bytes(file)) is read_header(bytes(file)) is None
    for pure, compiled in both(path_of, bytes(file), range(2)):
        assert compiled == pure
        assert isinstance(pure, str)  # bad, and nothing worse


@given(
    st.lists(st.sampled_from([b"\xff\xd0", b"\xff\xd7", b"\xff\x00", b"\xff", b"ab", b"\xff\xd9", b"\xff\xc4"])),
    st.integers(2, 9), st.integers(0, 6), st.booleans(),
)  # fmt: skip
def test_segments_are_cut_off_where_the_pure_path_does(
    kernels: Kernels, pieces: list[bytes], scan_at: int, count: int, ends: bool
) -> None:
    data = b"\xff\xd8" + b"".join(pieces) + (b"\xff\xd9" if ends else b"")
    assert kernels.cut(data, scan_at, count) == cut_at(data, scan_at, count)


def test_more_segments_than_the_pure_path_counts_are_not_cut_off(kernels: Kernels) -> None:
    data = b"\xff\xd0" * 2000 + b"\xff\xd9"
    for count in (1024, 1025):
        assert kernels.cut(data, 0, count) == cut_at(data, 0, count) == (2046 if count == 1024 else None)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\xff\xd8\xff\xda\x00\x02", b"\xff\xd8" + b"\xff\xe0\x00\x02" * 9])
def test_a_header_that_ends_too_soon_is_none(kernels: Kernels, data: bytes) -> None:
    assert kernels.header(data) is read_header(data) is None


@st.composite
def boxes(draw: st.DrawFn, height: int, width: int) -> Box:
    """Rectangles, a share of which touch an edge or are a pixel wide."""
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return Box(top, left, draw(st.integers(top + 1, height)), draw(st.integers(left + 1, width)))


@relaxed
@given(
    st.data(), st.sampled_from(SUBSAMPLINGS), st.integers(1, 90), st.integers(1, 130), st.sampled_from([40, 90, 100])
)
def test_a_rectangle_is_that_of_the_whole_image(
    kernels: Kernels, photo: Photo, jpeg: Maker, data: st.DataObject, kind: str, height: int, width: int, quality: int
) -> None:
    file = jpeg(photo(height, width), kind, quality)
    box = data.draw(boxes(height, width))
    image = region(kernels, file, box)
    assert image is not None
    assert np.array_equal(image, np.broadcast_to(box.of(simplejpeg.decode_jpeg(file)), image.shape))


@relaxed
@given(
    st.data(), st.sampled_from(SUBSAMPLINGS), st.integers(8, 150), st.integers(8, 150), st.sampled_from([2, 4, 8]),
    st.sampled_from([{}, {"restart_marker_blocks": 3}, {"progressive": True}]),
)  # fmt: skip
def test_a_rectangle_at_a_scale_is_that_of_the_whole_image_at_it(
    kernels: Kernels, photo: Photo, jpeg: Maker, saved: Maker, data: st.DataObject, kind: str, height: int, width: int,
    scale: int, options: dict[str, Any],
) -> None:  # fmt: skip
    image = photo(height, width)
    if options:
        file = saved(image, "JPEG", subsampling=data.draw(st.sampled_from([0, 1, 2])), **options)
    else:
        file = jpeg(image, kind)
    small = data.draw(boxes(height // scale, width // scale))
    size = {"min_height": -(-height // scale), "min_width": -(-width // scale)}
    made = region(kernels, file, Box(*(number * scale for number in small)), scale)
    assert made is not None
    assert np.array_equal(made, np.broadcast_to(small.of(simplejpeg.decode_jpeg(file, **size)), made.shape))


@pytest.mark.parametrize("kind", SUBSAMPLINGS)
@pytest.mark.parametrize("size", [(17, 33), (16, 32), (9, 5)])
def test_rectangles_along_an_edge_are_those_of_the_whole_image(
    kernels: Kernels, photo: Photo, jpeg: Maker, kind: str, size: tuple[int, int]
) -> None:
    height, width = size
    file = jpeg(photo(height, width), kind)
    whole = np.broadcast_to(simplejpeg.decode_jpeg(file), (height, width, 3))
    across = [Box(3, left, 8, right) for left in range(width) for right in range(left + 1, width + 1)]
    down = [Box(top, 2, bottom, 5) for top in range(height) for bottom in range(top + 1, height + 1)]
    for box in across + down:
        image = region(kernels, file, box)
        assert image is not None
        assert np.array_equal(image, box.of(whole)), box


@relaxed
@given(
    st.data(),
    st.sampled_from([0, 1, 2]),
    st.integers(1, 130),
    st.integers(1, 90),
    st.sampled_from(
        [{"progressive": True}, {"restart_marker_blocks": 1}, {"restart_marker_blocks": 7}, {"optimize": True}]
    ),
)
def test_rectangles_of_other_jpegs_are_those_of_the_whole_image(
    kernels: Kernels,
    photo: Photo,
    saved: Maker,
    data: st.DataObject,
    subsampling: int,
    height: int,
    width: int,
    options: dict[str, Any],
) -> None:
    file = saved(photo(height, width), "JPEG", subsampling=subsampling, **options)
    box = data.draw(boxes(height, width))
    image = region(kernels, file, box)
    assert image is not None
    assert np.array_equal(image, box.of(simplejpeg.decode_jpeg(file)))


@relaxed
@given(
    st.data(),
    st.sampled_from(INDEXED_SUBSAMPLINGS),
    st.integers(1, 150),
    st.integers(1, 180),
    st.sampled_from([1, 4, 8]),
    st.booleans(),
)
def test_rectangles_of_indexed_jpegs_are_those_of_the_whole(
    kernels: Kernels, data: st.DataObject, kind: str, height: int, width: int, mcus: int, own_entropy: bool
) -> None:
    scan = indexed(drawn(height, width, kind), mcus)
    box = data.draw(boxes(height, width))
    nbytes = kernels.scan_bytes(scan, box)
    buffer = np.random.default_rng(0).integers(0, 256, nbytes + 64, dtype=np.uint8)
    behind = buffer[nbytes:].copy()
    kernels.use_own_entropy(own_entropy)  # segments are taken from where they lie, or joined for libjpeg's
    try:
        image = kernels.scan(scan, box, buffer)
    finally:
        kernels.use_own_entropy(True)
    assert image is not None
    assert np.array_equal(image, np.broadcast_to(box.of(simplejpeg.decode_jpeg(scan.jpeg)), image.shape))
    assert np.array_equal(buffer[nbytes:], behind)


def test_contradicting_numbers_of_an_indexed_jpeg_are_refused(kernels: Kernels) -> None:
    scan = indexed(drawn(64, 96, "420"), 4)
    box = Box(8, 8, 40, 40)
    buffer = np.empty(kernels.scan_bytes(scan, box), np.uint8)
    assert kernels.scan(scan, box, buffer) is not None
    assert kernels.scan(scan, box, buffer[:-1]) is None
    head = scan.head
    for others in (
        {"segments": head.segments + 1}, {"interval": 6}, {"scan_at": head.image_bytes + 1}, {"height": 65},
        {"width": 97}, {"height_at": head.scan_at}, {"height_at": 2**32 - 2}, {"unit": (0, 0)},
        {"unit": (16, 2**32 - 16)}, {"interval": 2**28}, {"interval": -1}, {"image_bytes": -1},
    ):  # fmt: skip
        assert kernels.scan(dataclasses.replace(scan, head=dataclasses.replace(head, **others)), box, buffer) is None
    for lengths in (scan.lengths[:-2], memoryview(bytes(len(scan.lengths))), memoryview(b"\xff" * len(scan.lengths))):
        assert kernels.scan(dataclasses.replace(scan, lengths=lengths), box, buffer) is None


@pytest.mark.parametrize(
    "box", [(-8, 0, 8, 8), (0, -8, 8, 8), (-9, -9, -1, -1), (0, 0, 41, 8), (8, 8, 8, 9), (9, 9, 8, 8)]
)
def test_boxes_outside_the_image_are_refused(
    kernels: Kernels, photo: Photo, saved: Maker, box: tuple[int, ...]
) -> None:
    file, buffer = saved(photo(40, 40), "JPEG"), np.zeros(1 << 20, np.uint8)
    header, scan = read_header(file), indexed(drawn(40, 40, "444"), 4)
    assert header is not None
    for scale in (1, 3, 2**31):
        assert kernels.region(file, header, Extent(40, len(file), WHOLE), Box(*box), buffer, scale) is None
    assert kernels.scan(scan, Box(*box), buffer) is None
    assert not buffer.any()


def test_more_bytes_than_a_file_has_are_refused(kernels: Kernels, photo: Photo, saved: Maker) -> None:
    file, buffer = saved(photo(40, 40), "JPEG"), np.zeros(1 << 20, np.uint8)
    header = read_header(file)
    assert header is not None
    assert kernels.region(file, header, Extent(40, len(file) + 1, WHOLE), Box(0, 0, 8, 8), buffer) is None


@pytest.mark.parametrize(
    "into",
    [np.zeros((24, 24, 1), np.uint8), np.zeros((24, 12, 3), np.uint8), np.zeros((24, 24, 3), np.float32),
     np.zeros((24, 48, 3), np.uint8)[:, ::2], np.zeros(24 * 24 * 3, np.uint8)],
)  # fmt: skip
def test_a_row_of_another_kind_is_not_written_to(kernels: Kernels, photo: Photo, saved: Maker, into: Any) -> None:
    recipe = CropRecipe.of(RandomResizedCrop(24, (0.3, 1.0), (0.8, 1.2)), Decode(max_pixels=1 << 20))
    buffer, words = np.empty(1 << 20, np.uint8), bytes(range(64))
    file = saved(photo(80, 80), "JPEG")
    assert kernels.crop(file, recipe, words, False, buffer, np.zeros((24, 24, 3), np.uint8))
    assert not kernels.crop(file, recipe, words, False, buffer, into)
    if into.shape[1:] != (12, 3):  # a row of its own size to the resize
        assert not kernels.resize(photo(80, 80), into, False)
    assert not into.any()


def changed(scan: IndexedScan, image: bytes, scan_at: int, lengths: npt.NDArray[np.int64]) -> IndexedScan:
    """Of a record that says this instead, one object as the compiled path wants it."""
    front = HEAD_BYTES + 2 * len(lengths)
    record = memoryview(bytes(HEAD_BYTES) + lengths.astype("<u2").tobytes() + image)
    return IndexedScan(dataclasses.replace(scan.head, scan_at=scan_at), record[HEAD_BYTES:front], record[front:])


@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    st.sampled_from(INDEXED_SUBSAMPLINGS),
    st.sampled_from(["none", "bytes", "zeros", "marker", "frame"]),
)
def test_rows_and_verdicts_of_indexed_jpegs_are_the_pure_paths(
    path_of: PathOf, data: st.DataObject, kind: str, damage: str
) -> None:
    scan = indexed(drawn(150, 90, kind), data.draw(st.sampled_from([1, 4])))
    image = bytearray(scan.jpeg)
    at = data.draw(st.integers(scan.head.scan_at, len(image) - 40))
    if damage == "bytes":
        for _ in range(3):
            image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    elif damage == "zeros":
        image[at : at + 30] = bytes(30)
    elif damage == "frame":
        image[scan.head.height_at + data.draw(st.integers(0, 7))] = data.draw(st.integers(0, 255))
    elif damage == "marker":
        image[at : at + 2] = data.draw(st.sampled_from([b"\xff\xd9", b"\xff\xd3", b"\xff\xd0", b"\xff\xc4"]))
    damaged = changed(scan, bytes(image), scan.head.scan_at, np.frombuffer(scan.lengths, "<u2").astype(np.int64))
    for pure, compiled in both(path_of, damaged, range(6)):
        assert compiled == pure


def test_a_first_segment_of_the_whole_image_is_no_indexed_record(
    kernels: Kernels, path_of: PathOf, photo: Photo, saved: Maker
) -> None:
    """Its header has no restart interval, and behind the image there is data that nobody reads."""
    file = saved(photo(32, 64), "JPEG", subsampling=0)
    header = read_header(file)
    assert header is not None
    segments = 4 * 2  # rows of MCUs, and segments of 4 MCUs in one
    pieces = [file[header.scan_at : -2], *[b"\x12\x34"] * (segments - 1)]
    marks = [*(0xD0 + k for k in range(segments - 1)), 0xD9]
    ends = [piece + bytes([0xFF, mark]) for piece, mark in zip(pieces, marks, strict=True)]
    scan = indexed(drawn(32, 64, "444"), 4)
    head = dataclasses.replace(
        scan.head, height_at=header.height_at, image_bytes=header.scan_at + sum(map(len, ends)), segments=segments
    )
    odd = changed(
        dataclasses.replace(scan, head=head), file[: header.scan_at] + b"".join(ends), header.scan_at,
        np.array([len(end) for end in ends]),
    )  # fmt: skip
    assert (head.interval, head.unit, head.height, head.width) == (4, (8, 8), 32, 64)
    assert not kernels.is_true(odd)
    for pure, compiled in both(path_of, odd, range(4)):
        assert compiled == pure


def decoded(kernels: Kernels, data: bytes, box: Box) -> tuple[Pixels | None, Pixels | None]:
    """With our Huffman decoder, and with libjpeg's."""
    assert kernels.own_entropy  # Pillow's release is a known one
    ours = region(kernels, data, box)
    kernels.use_own_entropy(False)
    try:
        return ours, region(kernels, data, box)
    finally:
        kernels.use_own_entropy(True)


@st.composite
def coded(draw: st.DrawFn) -> bytes:
    """JPEGs with long codes and long numbers, empty blocks and full ones, tables of their own and standard ones."""
    height, width = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    noise = chance.integers(0, 256, (height, width, 3), np.uint8)
    smooth = np.add.outer(np.arange(height), np.arange(width))[..., None].astype(np.uint8).repeat(3, 2)
    pixels = np.where(chance.random((height, width, 1)) < draw(st.sampled_from([0.0, 0.02, 1.0])), noise, smooth)
    image = Image.fromarray(pixels).convert(draw(st.sampled_from(["RGB", "RGB", "L"])))
    options: dict[str, Any] = {"optimize": draw(st.booleans()), "quality": draw(st.sampled_from([1, 40, 90, 100]))}
    if image.mode == "RGB":
        options["subsampling"] = draw(st.sampled_from([0, 1, 2]))
    if draw(st.booleans()):
        options["restart_marker_blocks"] = draw(st.integers(1, 9))
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["none", "none", "bit", "bytes", "cut", "zeros"]))
def test_our_huffman_decoder_finds_what_libjpegs_does_or_refuses(
    kernels: Kernels, vectors_up_to: PathOf, data: st.DataObject, damage: str
) -> None:
    file = bytearray(data.draw(coded()))
    header = read_header(bytes(file))
    assert header is not None
    scan = range(header.scan_at, len(file) - 2)
    if damage == "bit":
        file[data.draw(st.sampled_from(scan))] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "bytes":
        at = data.draw(st.sampled_from(scan))
        file[at:at] = data.draw(st.binary(min_size=1, max_size=20))
    elif damage == "cut":
        at = data.draw(st.sampled_from(scan))
        del file[at : at + data.draw(st.integers(1, 40))]
    elif damage == "zeros":
        at = data.draw(st.sampled_from(scan))
        file[at : min(at + 20, scan.stop)] = bytes(min(at + 20, scan.stop) - at)
    box = data.draw(boxes(header.height, header.width))
    with vectors_up_to(data.draw(st.sampled_from(VECTORS))):
        ours, theirs = decoded(kernels, bytes(file), box)
    if ours is not None:
        assert theirs is not None
        assert np.array_equal(ours, theirs)
    assert ours is not None or damage != "none"


def test_our_huffman_decoder_is_in_use_and_the_stricter_one(kernels: Kernels, photo: Photo, saved: Maker) -> None:
    file, whole = saved(photo(40, 40), "JPEG", quality=90), Box(0, 0, 40, 40)
    ours, theirs = decoded(kernels, file, whole)
    assert ours is not None
    assert theirs is not None
    ours, theirs = decoded(kernels, file[:-2] + b"\x00" + file[-2:], whole)
    assert ours is None
    assert theirs is not None  # it has read that byte ahead, and says nothing


def without(data: bytes, marker: int) -> bytes:
    """The JPEG without its segments of one kind."""
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        after = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += b"" if data[at + 1] == marker else data[at:after]
        at = after
    return kept + data[at:]


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("marker", [0xDB, 0xC4])
def test_a_jpeg_without_tables_does_not_take_the_last_ones(
    kernels: Kernels, photo: Photo, saved: Maker, marker: int, progressive: bool
) -> None:
    whole = Box(0, 0, 40, 40)
    plain = saved(photo(40, 40), "JPEG", progressive=progressive, optimize=True)
    bare = without(plain, marker)
    for data in (plain, bare, plain, bare):
        ours, theirs = decoded(kernels, data, whole)
        assert (ours is None) == (theirs is None) == (data is bare)


def test_a_scan_without_tables_does_not_take_the_last_ones(
    path_of: PathOf, kernels: Kernels, photo: Photo, saved: Maker
) -> None:
    """Of three scans, the last two name Huffman tables that the file does not bring; libjpeg warns of no empty one."""
    grey = saved(photo(64, 64)[:, :, 0], "JPEG", quality=75)
    scan_at = grey.index(b"\xff\xda")
    frame = bytes.fromhex("ffc0 0011 08 0040 0040 03 01 11 00 02 11 00 03 11 00")
    front = without(without(grey, 0xC0), 0xDA)
    tables = front[: front.index(b"\xff\xda")]
    data_of = grey[scan_at + 2 + int.from_bytes(grey[scan_at + 2 : scan_at + 4], "big") : -2]

    def scan(part: int, table: int) -> bytes:
        return bytes([0xFF, 0xDA, 0, 8, 1, part, table, 0, 63, 0])

    def rows(file: bytes) -> list[bytes | str]:
        return [made(file, maker, SampleKey(1, 0, 0)) for maker in MAKERS]

    for count in range(270, 282):  # as many bytes as it takes for all blocks, or a few more or less
        junk = np.random.default_rng(5).integers(0, 255, count, np.uint8).tobytes()
        file = tables + frame + scan(1, 0) + data_of + scan(2, 0x11) + junk + scan(3, 0x11) + junk + b"\xff\xd9"
        file += bytes(4096)  # room for libjpeg's fast decoder
        with path_of("pure"):
            expected = rows(file)
        with path_of("native"):
            assert rows(file) == expected
            rows(saved(photo(64, 64), "JPEG"))
            assert rows(file) == expected


def test_threads_do_not_share_what_the_decoder_keeps(kernels: Kernels, photo: Photo, saved: Maker) -> None:
    files = [saved(photo(70, 90, seed), "JPEG", quality=60 + 9 * seed, optimize=True) for seed in range(4)]
    box = Box(9, 7, 55, 80)
    expected = [region(kernels, file, box) for file in files]
    wrong: list[int] = []

    def work(which: int) -> None:
        for _ in range(200):
            found = region(kernels, files[which], box)
            if found is None or not np.array_equal(found, np.asarray(expected[which])):
                wrong.append(which)

    for _ in range(2):  # a second set of threads comes where the first has ended
        threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_jpeg_of_rgb_components_is_left_to_the_pure_path(kernels: Kernels, photo: Photo, saved: Maker) -> None:
    file = saved(photo(40, 40), "JPEG", keep_rgb=True, subsampling=0)
    assert region(kernels, file, Box(0, 0, 10, 10)) is None
    assert Encoded(file).clean(Box(0, 0, 10, 10)) is not None


def test_a_progressive_jpeg_without_its_end_is_left_to_pure(
    kernels: Kernels, path_of: PathOf, photo: Photo, saved: Maker
) -> None:
    """The pure path decides about it."""
    file = saved(photo(120, 90), "JPEG", progressive=True)
    scans = [match.start() for match in re.finditer(b"\xff\xda", file)]
    for count in range(1, len(scans)):
        coarse = file[: file.rfind(b"\xff\xc4", 0, scans[count])] + b"\xff\xd9"
        assert region(kernels, coarse, Box(20, 30, 60, 70)) is None
        for pure, compiled in both(path_of, coarse, range(2)):
            assert compiled == pure


@settings(relaxed, max_examples=240)
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 90), st.integers(1, 250)),
    st.tuples(st.integers(1, 90), st.integers(1, 250)),
    st.booleans(),
    st.booleans(),
    st.sampled_from(VECTORS),
)
def test_a_resize_is_torchs(
    kernels: Kernels, vectors_up_to: PathOf, seed: int, size: tuple[int, int], wanted: tuple[int, int], mirror: bool,
    harsh: bool, vectors: str,
) -> None:  # fmt: skip
    noise = np.random.default_rng(seed).integers(0, 2 if harsh else 256, (size[0], size[1] + 3, 3), dtype=np.uint8)
    image = (noise * 255 if harsh else noise)[:, 1 : 1 + size[1]]
    assume(size != wanted)
    into = np.full((wanted[0] + 1, wanted[1], 3), 7, np.uint8)
    with vectors_up_to(vectors):
        assert kernels.resize(image, into[:-1], mirror) == (size[1] >= 8)
    assert (into[-1] == 7).all()
    if size[1] >= 8:
        expected = torch.ops.aten._upsample_bilinear2d_aa(
            torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0), list(wanted), False, None, None
        )[0].permute(1, 2, 0)
        assert np.array_equal(into[:-1, ::-1] if mirror else into[:-1], expected.numpy())


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("side", [50, 223, 225, 299, 375, 448, 500, 1000, 2999])
def test_a_large_reduction_is_torchs(
    kernels: Kernels, path_of: PathOf, vectors_up_to: PathOf, side: int, mirror: bool, vectors: str
) -> None:
    image = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    into = np.empty((224, 224, 3), np.uint8)
    with vectors_up_to(vectors):
        assert kernels.resize(image, into, mirror=mirror)
    into = into[:, ::-1] if mirror else into
    with path_of("pure"):
        assert np.array_equal(resize(image, None, (224, 224), "bilinear"), into)


WITH_EVERY_FORM = """
import numpy as np
from prepserver.transform import native
from prepserver.transform.native.compiled import VECTORS
from prepserver.transform.native.questions import resized
kernels, noise = native.kernels(), np.random.default_rng(0).integers(0, 256, (83, 109, 3), np.uint8)
for vectors in VECTORS:
    kernels.use_vectors(vectors)
    for size in ((24, 40), (83, 64), (120, 130), (24, 9)):
        row = np.empty((*size, 3), np.uint8)
        assert kernels.resize(noise, row, mirror=True)
        assert np.array_equal(row, resized((), noise, size).right)
"""


def test_every_form_of_the_resize_is_torchs_without_avx2_too(kernels: Kernels) -> None:
    """torch has other code for CPUs without AVX2; a process can be told to use that."""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "PREPSERVER_NATIVE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WITH_EVERY_FORM], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@settings(relaxed, max_examples=120)
@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 8), st.integers(0, 5), st.sampled_from(VECTORS)
)  # fmt: skip
def test_pixels_are_turned_as_the_pure_path_turns_them(
    kernels: Kernels, vectors_up_to: PathOf, height: int, width: int, orientation: int, margin: int, vectors: str
) -> None:
    stored = np.random.default_rng(height).integers(0, 256, (height, width + margin, 3), np.uint8)[:, margin:]
    with vectors_up_to(vectors):
        upright = kernels.turn(stored, orientation)
    assert upright is not None
    assert np.array_equal(upright, turned(stored, orientation))


@pytest.mark.parametrize("odd", [np.s_[:, ::-1], np.s_[::-1], np.s_[:, ::2], np.s_[:, :, ::-1], np.s_[:, :, :1]])
def test_pixels_laid_out_otherwise_are_not_turned(kernels: Kernels, photo: Photo, odd: Any) -> None:
    assert kernels.turn(photo(40, 60)[odd], 6) is None
    assert kernels.turn(photo(40, 60), 9) is None
    assert kernels.turn(photo(40, 60).astype(np.int8), 6) is None


@pytest.mark.parametrize("odd", [np.s_[:, ::-1], np.s_[::-1], np.s_[:, ::2], np.s_[:, :, ::-1], np.s_[:, :, :1]])
def test_pixels_laid_out_otherwise_are_left_to_torch(kernels: Kernels, photo: Photo, odd: Any) -> None:
    image = photo(40, 60)[odd]
    assert not kernels.resize(image, np.empty((20, 20, image.shape[2]), np.uint8), mirror=False)
    assert not kernels.resize(photo(40, 60), np.empty((40, 20, 3), np.uint8)[::2], mirror=False)


def made(data: bytes | IndexedScan, maker: RowMaker, key: SampleKey) -> bytes | str:
    row = np.full(maker.fields[0].shape, 99, maker.fields[0].dtype)
    try:
        make_rows(data, key, [(maker, row)])
    except BadSample as bad:
        return bad.reason
    return row.tobytes()


MAKERS = [
    RowMaker(Pipeline.from_ops(ops, views=2), view)
    for ops, view in (
        ([RandomResizedCrop(24, scale=(0.02, 1.0)), RandomHorizontalFlip()], 0),
        ([RandomResizedCrop(24, scale=(0.02, 1.0)), RandomHorizontalFlip()], 1),
        ([RandomCrop(20, pad_if_needed=True)], 0),
        ([Resize(32), CenterCrop(28)], 0),
    )
]


def both(path_of: PathOf, data: bytes | IndexedScan, keys: range) -> list[tuple[bytes | str, bytes | str]]:
    """Rows by the one path and by the other."""
    results = []
    for name in ("pure", "native"):
        with path_of(name):
            results.append([made(data, maker, SampleKey(1, 0, key)) for maker in MAKERS for key in keys])
    return list(zip(*results, strict=True))


@settings(max_examples=24, deadline=None)
@given(
    st.data(),
    st.sampled_from(["plain", "restarts", "progressive"]),
    st.sampled_from(["none", "bytes", "zeros", "cut", "inserted", "end", "frame"]),
)
def test_rows_and_verdicts_are_the_pure_paths_whatever_the_file(
    path_of: PathOf, photo: Photo, saved: Maker, data: st.DataObject, kind: str, damage: str
) -> None:
    """Files are sound or damaged."""
    options: dict[str, Any] = {} if kind == "plain" else KINDS[kind]
    file = bytearray(saved(photo(150, 90), "JPEG", subsampling=data.draw(st.sampled_from([0, 1, 2])), **options))
    at = data.draw(st.integers(600, len(file) - 60))
    if damage == "bytes":
        for _ in range(3):
            file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    elif damage == "zeros":
        file[at : at + 30] = bytes(30)
    elif damage == "cut":
        del file[at:]
    elif damage == "inserted":
        file[at:at] = data.draw(
            st.sampled_from([b"\xff\xd9", b"\xff\xd3", b"\xff\xc4\x00\x02", b"\x12\x34" * 20, b"\xff"])
        )
    elif damage == "frame":  # size, number of components, and what is said of each
        header = read_header(bytes(file))
        assert header is not None
        file[header.height_at + data.draw(st.integers(0, 13))] = data.draw(st.sampled_from([0, 1, 3, 0x10, 0x15, 255]))
    elif damage == "end":
        file[-2:] = b"\x00\x00"
    for pure, compiled in both(path_of, bytes(file), range(4)):
        assert compiled == pure


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["plain", "restarts", "progressive", "packed"]), st.sampled_from(VECTORS))
def test_fill_bytes_within_a_scan_are_left_to_the_pure_path(
    path_of: PathOf, vectors_up_to: PathOf, photo: Photo, saved: Maker, data: st.DataObject, kind: str, vectors: str
) -> None:
    """0xFF before a stuffed zero, a marker or any other byte; libjpeg's fast and slow decoders differ on the first."""
    scan = indexed(drawn(150, 90, "444"), 4)
    head = scan.head
    file = bytes(scan.jpeg) if kind == "packed" else saved(photo(150, 90), "JPEG", subsampling=0, **KINDS.get(kind, {}))
    begin = head.scan_at if kind == "packed" else file.index(b"\xff\xda") + 14
    marks = [match.start() for match in re.finditer(b"\xff", file[begin:])]
    lengths = np.frombuffer(scan.lengths, "<u2").astype(np.int64)
    for at in sorted(data.draw(st.lists(st.sampled_from(marks) | st.integers(0, len(file) - begin - 2), max_size=3)))[
        ::-1
    ]:
        count = data.draw(st.integers(1, 3))
        file = file[: begin + at] + b"\xff" * count + file[begin + at :]
        lengths[np.searchsorted(np.cumsum(lengths), at, side="right")] += count
    changed_file = file if kind != "packed" else changed(
        dataclasses.replace(scan, head=dataclasses.replace(head, image_bytes=len(file))), file, head.scan_at, lengths
    )  # fmt: skip
    with vectors_up_to(vectors):
        for pure, compiled in both(path_of, changed_file, range(3)):
            assert compiled == pure


@settings(max_examples=60, deadline=None)
@given(
    st.data(), st.sampled_from([1, 6, 7]), st.sampled_from([1, 3, 12]), st.sampled_from([0, 2]),
    st.sampled_from(["number", "gone", "twice", "fill", "end", "bytes", "none"]),
)  # fmt: skip
def test_rows_with_damaged_restart_markers_are_the_pure_paths(
    path_of: PathOf, photo: Photo, saved: Maker, data: st.DataObject, orientation: int, blocks: int, subsampling: int,
    damage: str,
) -> None:  # fmt: skip
    """The verdicts are the pure path's, too."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    file = bytearray(
        saved(photo(150, 90), "JPEG", subsampling=subsampling, restart_marker_blocks=blocks, exif=tags)
    )  # fmt: skip
    header = read_header(bytes(file))
    assert header is not None
    marks = [match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", file) if match.start() >= header.scan_at]
    at = data.draw(st.sampled_from(marks))
    changes: dict[str, bytes | bytearray] = {
        "number": bytes([0xFF, data.draw(st.integers(0xD0, 0xD7))]), "gone": b"", "twice": file[at : at + 2] * 2,
        "fill": b"\xff" + file[at : at + 2], "end": b"\xff\xd9", "bytes": b"\x12\x34" + file[at : at + 2],
        "none": file[at : at + 2],
    }  # fmt: skip
    file[at : at + 2] = changes[damage]
    for pure, compiled in both(path_of, bytes(file), range(6)):
        assert compiled == pure


def test_rows_of_real_photos_are_those_of_the_pure_path(path_of: PathOf, photos: Path) -> None:
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))[::25]
    assert files
    for path in files:
        for pure, compiled in both(path_of, path.read_bytes(), range(2)):
            assert compiled == pure, path.name


def test_the_environment_turns_it_off_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPSERVER_NATIVE", "0")
    native.forget()
    try:
        assert native.kernels() is None
        assert native.path() == ("pure", "turned off by PREPSERVER_NATIVE=0")
    finally:
        monkeypatch.undo()
        native.forget()


def test_the_library_in_use_is_named(kernels: Kernels) -> None:
    assert native.path().name == "native"
    assert "libjpeg-turbo" in native.path().reason
    assert "without" not in native.path().reason


@contextmanager
def loaded_with(of: Callable[[Any], bool], add: int = 1) -> Iterator[tuple[Kernels, str]]:
    """The kernels as they are after a trial in which the pixels `of` some questions were others, and why."""
    real = trial.make

    def wrong(calls: Sequence[trial.Call], *where: str) -> tuple[bytes, list[trial.Result]]:
        bound_to, results = real(calls, *where)
        for place, question in enumerate(trial_questions()):
            if of(question.of):
                results[place] = results[place]._replace(out=bytes((byte + add) % 256 for byte in results[place].out))
        return bound_to, results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "make", wrong)
        native.forget()
        found = native.kernels()
        assert found is not None
        try:
            yield found, native.path().reason
        finally:
            found.use_own_entropy(True)  # of the whole process
            found.use_vectors(VECTORS[-1])
            native.forget()


def is_a_resize(of: Any) -> bool:
    return len(of) == 2 and isinstance(of[0], int)


def test_what_differs_otherwise_leaves_our_huffman_decoder(kernels: Kernels) -> None:
    with loaded_with(is_a_resize) as (found, reason):
        assert reason.endswith(", without resize")
        assert found.own_entropy
        assert not found.resizes


@pytest.mark.parametrize("right", VECTORS[:-1])
def test_vectors_are_left_where_they_give_other_pixels(kernels: Kernels, right: str) -> None:
    most = VECTORS.index(right)
    if VECTORS.index(kernels.vectors) <= most:
        pytest.skip(f"this CPU has nothing better than {right}")
    with loaded_with(lambda of: is_a_resize(of) and of[0] > most) as (found, reason):
        assert reason.split(", without ")[1].split(", ")[0] == VECTORS[most + 1]
        assert found.own_entropy
        assert found.resizes
        assert found.vectors == right


def test_our_huffman_decoder_is_left_where_it_gives_other_pixels(kernels: Kernels) -> None:
    with loaded_with(lambda of: of[0] is True and len(of) == 3) as (found, reason):
        assert reason.endswith(", without our Huffman decoder")
        assert not found.own_entropy
        assert found.subsamplings == found.scaled_subsamplings == 63


def test_a_subsampling_with_other_pixels_is_not_used(kernels: Kernels) -> None:
    with loaded_with(lambda of: len(of) == 3 and of[1] == 3 and of[2] > 1) as (found, reason):
        assert reason.endswith(", without scaled 4:2:0")
        assert found.own_entropy
        assert (found.subsamplings, found.scaled_subsamplings) == (63, 63 - 8)


def test_a_library_that_gives_other_pixels_is_not_used(kernels: Kernels) -> None:
    real = Kernels(functions.load(str(native._LIBRARY)))
    assert len(real.use({(vectors, place) for vectors in range(3) for place in range(4)}, True)) == 12
    assert real.subsamplings == real.scaled_subsamplings == 0
    assert real.resizes


@pytest.mark.parametrize("release", ["1.5.3", "2.0.90", "3.1.90", "3.2.1", "4.0.0"])
def test_our_huffman_decoder_waits_for_a_release_that_is_known(
    kernels: Kernels, tmp_path: Path, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libjpeg.so"
    library.write_bytes(b"\0libjpeg-turbo version %s (build 20300101)\0" % release.encode())
    real = native._release
    monkeypatch.setattr(native, "_release", lambda _: real(bytes(library)))
    native.forget()
    try:
        found = native.kernels()
        assert found is not None
        assert not found.own_entropy
        assert native.path().reason.endswith(f", libjpeg-turbo {release} of Pillow, without our Huffman decoder")
    finally:
        kernels.use_own_entropy(True)
        monkeypatch.undo()
        native.forget()


def test_a_library_that_another_one_reaches_into_is_not_bound(kernels: Kernels, tmp_path: Path) -> None:
    library = functions.load(str(native._LIBRARY))
    source, other = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("int jpeg_finish_decompress(void *jpeg) { return jpeg != 0; }")
    linked = ["-Wl,--no-as-needed", library.prep_bound_to().decode()]
    subprocess.run(["cc", "-fPIC", "-shared", "-o", str(other), str(source), *linked], check=True)
    try:
        missing = library.prep_bind(str(other).encode())
        assert missing == b"jpeg_finish_decompress is of another library than jpeg_read_header"
    finally:
        assert library.prep_bind(str(_imaging.__file__).encode()) is None


def test_what_was_not_built_is_named_with_its_cause_and_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "why").write_text("no C compiler (cc)\n")
    monkeypatch.setattr(native, "_LIBRARY", tmp_path / "none.so")
    monkeypatch.setattr(native, "_NOT_BUILT", tmp_path / "why")
    native.forget()
    try:
        name, reason = native.path()
    finally:
        monkeypatch.undo()
        native.forget()
    assert name == "pure"
    assert reason.startswith("not built (no C compiler (cc)): ")
    for package in ("gcc libc6-dev", "c-compiler"):
        assert package in reason


BROKEN = {
    "crashes": ("*(volatile int *)0 = 1;", "the trial of the kernels failed: they were killed by SIGSEGV"),
    "hangs": ("for (;;) pause();", "the trial of the kernels failed: they did not end within 2.0 s"),
    "ends": ("_exit(0);", "the trial of the kernels failed: they ended too soon"),
    "refuses": ("return -1;", "gives other pixels than simplejpeg"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_kernels_that_break_in_their_trial_are_not_used(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photo: Photo, saved: Maker, how: str
) -> None:
    code, reason = BROKEN[how]
    monkeypatch.setattr(native, "_LIBRARY", broken_library(tmp_path, code))
    if how == "hangs":
        monkeypatch.setattr(trial, "DEADLINE_S", 2.0)
    native.forget()
    try:
        assert native.kernels() is None
        assert reason in native.path().reason
        assert made(saved(photo(60, 60), "JPEG"), MAKERS[0], SampleKey(1, 0, 0))
    finally:
        monkeypatch.undo()
        native.forget()
