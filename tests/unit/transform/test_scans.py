from __future__ import annotations

import dataclasses
import itertools
from functools import lru_cache

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from prepserver.pipeline.ops import (
    CenterCrop,
    Decode,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.packed import IndexedScan
from prepserver.transform import BadSample, SampleKey, row_makers
from prepserver.transform.scale import LEAST
from prepserver.transform.scans import cut
from prepserver.transform.stage import Box
from tests.support.complete import needs_kernels
from tests.support.images import make_rows
from tests.support.photos import PILLOW_SUBSAMPLINGS, SUBSAMPLINGS, indexed, jpeg

pytestmark = pytest.mark.once

SIDES = (1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 97, 130, 161, 256, 259)


@lru_cache(maxsize=256)
def scan_of(height: int, width: int, subsampling: str, mcus: int, lossless: bool = False) -> IndexedScan:
    return indexed(jpeg(height, width, subsampling), mcus, lossless)


def assert_same_pixels(scan: IndexedScan, top: int, left: int, height: int, width: int) -> tuple[int, Box]:
    """Cut out a part, and return the length of its JPEG and what that shows."""
    whole = simplejpeg.decode_jpeg(scan.jpeg)
    part = Box(top, left, top + height, left + width)
    jpeg, shown = cut(scan, part)
    image = simplejpeg.decode_jpeg(jpeg)
    assert image.shape == (shown.bottom - shown.top, shown.right - shown.left, 3)
    assert shown.top <= top
    assert shown.left <= left
    assert np.array_equal(part.within(shown).of(image), part.of(whole))
    return len(jpeg), shown


@st.composite
def crops(
    draw: st.DrawFn, kinds: tuple[str, ...], least: int = 1
) -> tuple[int, int, str, int, tuple[int, int, int, int]]:
    sides = st.sampled_from([side for side in SIDES if side >= least])
    height, width = draw(sides), draw(sides)
    crop_height, crop_width = draw(st.integers(least, height)), draw(st.integers(least, width))
    # The ends come up often: that is where edges are.
    top = draw(st.sampled_from((0, height - crop_height)) | st.integers(0, height - crop_height))
    left = draw(st.sampled_from((0, width - crop_width)) | st.integers(0, width - crop_width))
    box = (top, left, crop_height, crop_width)
    return height, width, draw(st.sampled_from(kinds)), draw(st.sampled_from((1, 4, 8))), box


@needs_kernels
@settings(max_examples=200, deadline=None)
@given(crop=crops(SUBSAMPLINGS))
def test_parts_are_those_of_the_whole_rearranged_without_loss(
    crop: tuple[int, int, str, int, tuple[int, int, int, int]],
) -> None:
    height, width, subsampling, mcus, box = crop
    assert_same_pixels(scan_of(height, width, subsampling, mcus, True), *box)


@settings(max_examples=200, deadline=None)
@given(crop=crops(PILLOW_SUBSAMPLINGS))
def test_parts_are_those_of_the_whole_encoded_by_pillow(
    crop: tuple[int, int, str, int, tuple[int, int, int, int]],
) -> None:
    height, width, subsampling, mcus, box = crop
    assert_same_pixels(scan_of(height, width, subsampling, mcus), *box)


@settings(max_examples=300, deadline=None)
@given(crop=crops(PILLOW_SUBSAMPLINGS, LEAST), scale=st.sampled_from((2, 4, 8)))
def test_parts_at_a_scale_are_those_of_the_whole_at_it(
    crop: tuple[int, int, str, int, tuple[int, int, int, int]], scale: int
) -> None:
    height, width, subsampling, mcus, box = crop
    top, left, crop_height, crop_width = (number - number % scale for number in box)
    scan = scan_of(height, width, subsampling, mcus)
    part = Box(top, left, top + crop_height, left + crop_width)
    jpeg, shown = cut(scan, part, scale)
    whole = small(bytes(scan.jpeg), height, width, scale)
    image = small(bytes(jpeg), shown.bottom - shown.top, shown.right - shown.left, scale)
    assert np.array_equal(part.within(shown).over(scale).of(image), part.over(scale).of(whole))


def small(data: bytes, height: int, width: int, scale: int) -> np.ndarray:
    return np.asarray(simplejpeg.decode_jpeg(data, min_height=-(-height // scale), min_width=-(-width // scale)))


@pytest.mark.parametrize("subsampling", PILLOW_SUBSAMPLINGS)
def test_crops_of_single_pixels_along_the_right_edge_are_right(subsampling: str) -> None:
    # A part of fewer than three chroma samples across would not be interpolated.
    for width in range(65, 85):
        scan = scan_of(40, width, subsampling, 4)
        for left in range(width - 6, width):
            assert_same_pixels(scan, 20, left, 3, width - left)


def test_a_part_is_much_smaller_than_the_whole() -> None:
    scan = scan_of(256, 256, "420", 4)
    nbytes, shown = assert_same_pixels(scan, 100, 100, 20, 20)
    assert shown == (96, 64, 122, 128)
    assert nbytes < len(scan.jpeg) / 5


def test_no_margin_is_taken_where_nothing_is_subsampled() -> None:
    _, shown = assert_same_pixels(scan_of(256, 256, "444", 4), 64, 64, 64, 64)
    assert shown == (64, 64, 128, 128)


def test_the_whole_image_is_the_jpeg_itself() -> None:
    scan = scan_of(97, 130, "420", 4)
    assert cut(scan, Box(0, 0, 97, 130))[0] is scan.jpeg


def test_markers_go_round_in_eights() -> None:
    jpeg, _ = cut(scan_of(256, 256, "444", 1), Box(8, 8, 208, 208))
    data = bytes(jpeg)
    scan = data[data.index(b"\xff\xda") + 14 :]
    marks = [b for a, b in itertools.pairwise(scan) if a == 0xFF and b]
    assert marks == [0xD0 + k % 8 for k in range(25 * 25 - 1)] + [0xD9]


def rows_of(data: bytes | IndexedScan, pipelines: list[Pipeline], key: SampleKey) -> list[np.ndarray]:
    targets = [
        (maker, np.zeros(maker.fields[0].shape, maker.fields[0].dtype))
        for pipeline in pipelines
        for maker in row_makers(pipeline)
    ]
    make_rows(data, key, targets)
    return [row for _, row in targets]


PIPELINES = [
    Pipeline.from_ops([RandomResizedCrop(32), RandomHorizontalFlip()]),
    Pipeline.from_ops([Resize(48), CenterCrop(40)]),
    Pipeline.from_ops([Decode(exif_orientation=False), RandomCrop(24, padding=4)]),
    Pipeline.from_ops([CenterCrop(16)]),
    Pipeline.from_ops([RandomResizedCrop(20, scale=(0.05, 0.2))], views=3),
]


@settings(max_examples=60, deadline=None)
@given(
    which=st.lists(st.sampled_from(PIPELINES), min_size=1, max_size=4),
    subsampling=st.sampled_from(PILLOW_SUBSAMPLINGS),
    orientation=st.integers(1, 8),
    key=st.builds(SampleKey, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
)
def test_rows_are_those_of_the_same_jpeg_as_a_plain_file(
    which: list[Pipeline], subsampling: str, orientation: int, key: SampleKey
) -> None:
    scan = scan_of(97, 130, subsampling, 4)
    turned = dataclasses.replace(scan, head=dataclasses.replace(scan.head, orientation=orientation))
    plain = with_orientation(bytes(scan.jpeg), orientation)
    for ours, theirs in zip(rows_of(turned, which, key), rows_of(plain, which, key), strict=True):
        assert np.array_equal(ours, theirs)


def with_orientation(data: bytes, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    block = exif.tobytes()
    return data[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2) + block + data[2:]


def test_an_image_over_the_pixel_limit_is_not_touched() -> None:
    scan = dataclasses.replace(scan_of(97, 130, "444", 4), jpeg=memoryview(b""))
    pipeline = Pipeline.from_ops([Decode(max_pixels=1000), RandomResizedCrop(8)])
    with pytest.raises(BadSample, match="max_pixels") as bad:
        rows_of(scan, [pipeline], SampleKey(0, 0, 0))
    assert list(bad.value.failures) == [0]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_scan_gives_rows_or_a_bad_sample(data: st.DataObject) -> None:
    scan = scan_of(64, 97, "420", 4)
    jpeg = bytearray(scan.jpeg)
    for _ in range(data.draw(st.integers(1, 20))):
        jpeg[data.draw(st.integers(0, len(jpeg) - 1))] = data.draw(st.integers(0, 255))
    bent = dataclasses.replace(scan, jpeg=memoryview(bytes(jpeg)))
    failures: list[dict[int, str]] = []
    try:
        rows_of(bent, PIPELINES[:2], SampleKey(data.draw(st.integers(0, 9)), 0, 0))
    except BadSample as bad:
        failures.append(dict(bad.failures))
    # An error that names no row would leave garbage in all of them unnoticed.
    assert all(failures)
