"""EXIF orientation: found in a few bytes, applied as Pillow applies it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from prepserver.pipeline.ops import Decode, RandomCrop, RandomResizedCrop, Resize
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import RowMaker, SampleKey
from prepserver.transform.decode import Encoded
from prepserver.transform.orientation import as_stored, from_exif, turned
from prepserver.transform.stage import Box
from tests.support.images import make_rows

Pixels = npt.NDArray[np.uint8]
Photo = Callable[..., Pixels]
Maker = Callable[..., bytes]


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x010F] = "camera"
    tags[0x0112] = orientation
    return tags


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_are_turned_as_pillow_turns_them(photo: Photo, orientation: int) -> None:
    image = photo(20, 31)
    tagged = Image.fromarray(image)
    tagged.getexif()[0x0112] = orientation
    assert np.array_equal(turned(image, orientation), np.asarray(ImageOps.exif_transpose(tagged)))


@given(st.data(), st.integers(1, 8), st.integers(1, 30), st.integers(1, 30))
def test_a_part_of_the_upright_image_is_found_as_stored(
    data: st.DataObject, orientation: int, height: int, width: int
) -> None:
    stored = np.arange(3 * height * width, dtype=np.uint16).astype(np.uint8).reshape(height, width, 3)
    upright = turned(stored, orientation)
    rows, columns = upright.shape[:2]
    top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    box = Box(top, left, data.draw(st.integers(top + 1, rows)), data.draw(st.integers(left + 1, columns)))
    part = as_stored(box, orientation, rows, columns).of(stored)
    assert np.array_equal(turned(part, orientation), box.of(upright))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [0, 1, 3, 6, 8, 9])
def test_the_tag_is_found_and_an_impossible_one_means_upright(
    photo: Photo, saved: Maker, kind: str, orientation: int
) -> None:
    encoded = Encoded(saved(photo(20, 31), kind, exif=exif(orientation)))
    upright = orientation if 1 <= orientation <= 8 else 1
    assert encoded.orientation == upright
    assert encoded.size(upright=True) == ((31, 20) if upright >= 5 else (20, 31))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_turned_once(photo: Photo, saved: Maker, orientation: int) -> None:
    image = photo(20, 31)
    encoded = Encoded(saved(image, "TIFF", exif=exif(orientation)))
    expected = turned(image, orientation)
    assert encoded.size(upright=True) == expected.shape[:2]
    assert np.array_equal(turned(encoded.tolerant(), encoded.orientation), expected)


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_are_read(order: str) -> None:
    tags = exif(7)
    tags.endian = order
    assert from_exif(tags.tobytes().removeprefix(b"Exif\0\0")) == 7


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: b"II*\0\x08\0\0\0" + tail))
def test_a_broken_block_says_upright_or_an_orientation(block: bytes) -> None:
    assert 1 <= from_exif(block) <= 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_crop_is_taken_from_the_upright_image(photo: Photo, saved: Maker, orientation: int) -> None:
    image = photo(64, 90)
    maker = RowMaker(Pipeline.from_ops([RandomCrop((30, 40))]))
    key = SampleKey(0, 0, 5)
    tagged, plain = np.zeros((2, 30, 40, 3), np.uint8)
    make_rows(saved(image, "PNG", exif=exif(orientation)), key, [(maker, tagged)])
    make_rows(saved(turned(image, orientation).copy(), "PNG"), key, [(maker, plain)])
    assert np.array_equal(tagged, plain)


def test_a_tagged_jpegs_row_is_that_of_the_whole_turned(photo: Photo, saved: Maker) -> None:
    data = saved(photo(200, 90), "JPEG", exif=exif(6))
    maker = RowMaker(Pipeline.from_ops([RandomResizedCrop(24)]))
    key = SampleKey(0, 0, 1)
    row, expected = np.zeros((2, 24, 24, 3), np.uint8)
    make_rows(data, key, [(maker, row)])
    whole = Encoded(data).clean(Box(0, 0, 200, 90))
    assert whole is not None
    upright = np.ascontiguousarray(np.rot90(whole, -1))
    plan = maker.plan(90, 200, key)
    maker.render(plan, plan.part.of(upright), expected)
    assert np.array_equal(row, expected)


def test_orientation_can_be_left_alone(photo: Photo, saved: Maker) -> None:
    image = photo(20, 31)
    maker = RowMaker(Pipeline.from_ops([Decode(exif_orientation=False), Resize((20, 31))]))
    row = np.zeros((20, 31, 3), np.uint8)
    make_rows(saved(image, "PNG", exif=exif(6)), SampleKey(0, 0, 0), [(maker, row)])
    assert np.array_equal(row, image)
