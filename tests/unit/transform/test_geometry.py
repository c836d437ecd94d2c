"""Crops, resizes, pads and flips against plain references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import (
    CenterCrop,
    Op,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    op_from_wire,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import RowMaker, SampleKey
from prepserver.transform.errors import BadSample
from prepserver.transform.ops.random_crop import RandomCropStage
from prepserver.transform.ops.random_resized_crop import RandomResizedCropStage
from prepserver.transform.resize import resize
from prepserver.transform.stage import Box, Draws, around
from prepserver.transform.window import window
from tests.support.resizing import float_resize

Pixels = npt.NDArray[np.uint8]
Photo = Callable[..., Pixels]
KEY = SampleKey(7, 1, 42)
pytestmark = pytest.mark.usefixtures("each_path")
relaxed = settings(max_examples=60, deadline=None)


def row_of(image: Pixels, *ops: Op, key: SampleKey = KEY) -> Any:
    maker = RowMaker(Pipeline.from_ops(ops))
    out = np.full(maker.fields[0].shape, 77, maker.fields[0].dtype)
    before = image.copy()
    height, width, _ = image.shape
    plan = maker.plan(height, width, key)
    maker.render(plan, plan.part.of(image), out)
    assert np.array_equal(image, before)
    return out


@relaxed
@given(source=st.tuples(st.integers(1, 90), st.integers(1, 90)), size=st.tuples(st.integers(1, 90), st.integers(1, 90)))
def test_a_cover_has_the_size_of_pillows_and_fits_its_crop(source: tuple[int, int], size: tuple[int, int]) -> None:
    op = Resize(size, cover=True)
    assert op.result(*source) == ImageOps.cover(Image.new("L", source[::-1]), size[::-1]).size[::-1]
    image = np.zeros((*source, 3), np.uint8)
    assert row_of(image, op, RandomCrop(size)).shape == (*size, 3)
    assert Pipeline.from_ops([op], columns={"image": kinds.Image(source)}).row.shape == (*op.result(*source), 3)
    with pytest.raises(SpecError, match="rows would differ in shape"):
        Pipeline.from_ops([op])


def test_a_cover_needs_both_sides_and_keeps_digests() -> None:
    with pytest.raises(SpecError, match=r"cover = True: needs \(height, width\)"):
        Resize(8, cover=True)
    assert "cover" not in Resize((8, 8)).to_wire()
    assert op_from_wire(Resize((8, 9), cover=True).to_wire()) == Resize((8, 9), cover=True)


@relaxed
@given(
    source=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    seed=st.integers(0, 9),
)
def test_resizing_is_within_one_level_of_float_arithmetic(
    source: tuple[int, int], size: tuple[int, int], seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (*source, 3), dtype=np.uint8)
    result = resize(image, None, size, "bilinear")
    assert np.abs(result - float_resize(image, size, "bilinear")).max() <= 1.05


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (50, 1), (1, 50)])
def test_a_result_one_pixel_wide_or_high_is_right(photo: Photo, size: tuple[int, int]) -> None:
    image = photo(20, 30)
    into = np.zeros((*size, 3), np.uint8)
    assert resize(image, into, size, "bilinear") is into
    assert np.abs(into - float_resize(image, size, "bilinear")).max() <= 1.05


def test_resizing_a_photo_is_above_fifty_decibels(photo: Photo) -> None:
    image = photo(375, 500)
    for mode in ("bilinear", "bicubic"):
        error = resize(image, None, (224, 224), mode) - float_resize(image, (224, 224), mode)
        assert 10 * np.log10(255**2 / np.mean(error**2)) > 50


def test_resizing_a_view_of_a_part_equals_resizing_a_copy_of_it(photo: Photo) -> None:
    image = photo(120, 160)
    part = image[13:77, 21:140]
    into = np.zeros((32, 48, 3), np.uint8)
    assert resize(part, into, (32, 48), "bilinear") is into
    assert np.array_equal(into, resize(part.copy(), None, (32, 48), "bilinear"))


def test_resizing_is_torchs_documented_interpolation(photo: Photo) -> None:
    image = photo(75, 100)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    for mode in ("bilinear", "bicubic"):
        expected = torch.nn.functional.interpolate(planes, (48, 64), mode=mode, antialias=True).clamp(0, 255)
        assert np.abs(float_resize(image, (48, 64), mode) - expected[0].permute(1, 2, 0).numpy()).max() < 0.01


def test_resizing_the_shorter_side_then_the_middle_is_usual(photo: Photo) -> None:
    """It is the usual evaluation."""
    image = photo(375, 500)
    row = row_of(image, Resize(256), CenterCrop(224))
    whole = float_resize(image, (256, 341), "bilinear")
    assert np.abs(row - whole[16:240, 58:282]).max() <= 1.05  # round(58.5) is 58: half to even


@pytest.mark.parametrize(
    ("height", "width", "top", "left"), [(9, 9, 0, 0), (12, 13, 2, 2), (10, 11, 0, 1), (5, 20, -2, 6), (4, 2, -2, -3)]
)
def test_the_middle_is_rounded_and_padded_as_torchvision_does(
    photo: Photo, height: int, width: int, top: int, left: int
) -> None:
    image = photo(height, width)
    padded = np.pad(image, ((20, 20), (20, 20), (0, 0)))
    expected = padded[20 + top : 29 + top, 20 + left : 29 + left]
    assert np.array_equal(row_of(image, CenterCrop(9)), expected)


@relaxed
@given(
    side=st.tuples(st.integers(2, 12), st.integers(2, 12)),
    before=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    after=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    mode=st.sampled_from(["constant", "edge", "reflect", "symmetric"]),
)
def test_padding_is_numpys(
    side: tuple[int, int],
    before: tuple[int, int],
    after: tuple[int, int],
    mode: Literal["constant", "edge", "reflect", "symmetric"],
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*side, 3), dtype=np.uint8)
    row = row_of(image, Resize(side), Pad((before[1], before[0], after[1], after[0]), 0, mode))
    assert np.array_equal(row, np.pad(image, ((before[0], after[0]), (before[1], after[1]), (0, 0)), mode))


def test_constant_padding_has_the_given_colour(photo: Photo) -> None:
    row = row_of(photo(4, 4), CenterCrop(4), Pad(1, fill=(1, 2, 3)))
    assert row[0, 0].tolist() == [1, 2, 3]
    assert row[5, 5].tolist() == [1, 2, 3]


def test_a_window_far_outside_is_all_padding(photo: Photo) -> None:
    assert (window(photo(4, 4), None, (40, 40, 3, 3), "constant", (9.0,)) == 9).all()


@relaxed
@given(st.integers(0, 10**6), st.sampled_from(["constant", "edge", "reflect", "symmetric"]))
def test_a_random_crop_is_a_part_of_the_padded_image(
    index: int, mode: Literal["constant", "edge", "reflect", "symmetric"]
) -> None:
    image = np.random.default_rng(1).integers(0, 256, (11, 14, 3), dtype=np.uint8)
    row = row_of(image, RandomCrop(10, padding=4, padding_mode=mode), key=SampleKey(0, 0, index))
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode)
    parts = np.lib.stride_tricks.sliding_window_view(padded, (10, 10), axis=(0, 1))
    assert (parts == row.transpose(2, 0, 1)).all(axis=(2, 3, 4)).any()


def test_a_random_crop_comes_to_every_place() -> None:
    stage = RandomCropStage(RandomCrop(2), 1)
    parts = {stage.draw(4, 4, Draws(SampleKey(0, 0, index), 1)).part for index in range(200)}
    assert parts == {Box(top, left, top + 2, left + 2) for top in range(3) for left in range(3)}


def test_a_crop_larger_than_the_image_is_a_bad_sample(photo: Photo) -> None:
    with pytest.raises(BadSample, match="pad_if_needed"):
        row_of(photo(9, 20), RandomCrop(10))
    assert row_of(photo(9, 20), RandomCrop(10, pad_if_needed=True)).shape == (10, 10, 3)


def test_flips_mirror_the_image(photo: Photo) -> None:
    image = photo(8, 11)
    same = Resize((8, 11))
    assert np.array_equal(row_of(image, same, RandomHorizontalFlip(1.0)), image[:, ::-1])
    assert np.array_equal(row_of(image, same, RandomVerticalFlip(1)), image[::-1])
    assert np.array_equal(row_of(image, RandomHorizontalFlip(1), RandomVerticalFlip(1), same), image[::-1, ::-1])
    assert np.array_equal(row_of(image, RandomHorizontalFlip(0.0), same), image)


def test_a_flip_happens_to_some_samples_and_not_to_others(photo: Photo) -> None:
    image = photo(8, 8)
    rows = [row_of(image, CenterCrop(8), RandomHorizontalFlip(), key=SampleKey(0, 0, index)) for index in range(40)]
    flipped = [np.array_equal(row, image[:, ::-1]) for row in rows]
    assert 5 < sum(flipped) < 35


@given(
    st.tuples(st.integers(1, 600), st.integers(1, 600)),
    st.integers(0, 10**9),
    st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)).map(sorted),
    st.tuples(st.floats(0.05, 20), st.floats(0.05, 20)).map(sorted),
)
def test_a_random_part_lies_within_the_image(
    size: tuple[int, int], index: int, scale: list[float], ratio: list[float]
) -> None:
    stage = RandomResizedCropStage(RandomResizedCrop(8, scale, ratio), 1)
    top, left, height, width = stage.box(*size, Draws(SampleKey(0, 0, index), 1))
    assert 0 <= top < top + height <= size[0]
    assert 0 <= left < left + width <= size[1]


@given(st.integers(0, 10**9))
def test_a_random_part_has_an_area_and_a_ratio_within_the_limits(index: int) -> None:
    stage = RandomResizedCropStage(RandomResizedCrop(8, (0.2, 0.5), (0.75, 4 / 3)), 1)
    _, _, height, width = stage.box(400, 500, Draws(SampleKey(0, 0, index), 1))
    assert 0.19 < height * width / (400 * 500) < 0.51
    assert 0.74 < width / height < 1.35


def test_where_no_part_fits_it_is_the_middle_at_nearest_ratio() -> None:
    stage = RandomResizedCropStage(RandomResizedCrop(8, (1.0, 1.0), (0.75, 4 / 3)), 1)
    assert stage.box(100, 1000, Draws(KEY, 1)) == (0, 433, 100, 133)
    assert stage.box(1000, 90, Draws(KEY, 1)) == (440, 0, 120, 90)


def test_random_resized_crop_is_a_crop_and_a_resize(photo: Photo) -> None:
    image = photo(120, 160)
    stage = RandomResizedCropStage(RandomResizedCrop((32, 40)), 1)
    top, left, height, width = stage.box(120, 160, Draws(KEY, 1))
    expected = float_resize(image[top : top + height, left : left + width], (32, 40), "bilinear")
    assert np.abs(row_of(image, RandomResizedCrop((32, 40))) - expected).max() <= 1.05


@pytest.mark.parametrize(
    ("op", "most"),
    [
        (RandomResizedCrop(24, scale=(0.01, 0.3)), 0.4),
        (RandomCrop(24, padding=30), 0.05),
        (CenterCrop(24), 0.05),
        (CenterCrop(200), 1),
        (Resize((20, 20)), 1),
    ],
)
def test_a_plan_asks_for_no_more_than_it_looks_at(photo: Photo, op: Op, most: float) -> None:
    image = photo(120, 160)
    maker = RowMaker(Pipeline.from_ops([op]))
    for index in range(20):
        part = maker.plan(120, 160, SampleKey(0, 0, index)).part
        assert (part.bottom - part.top) * (part.right - part.left) <= most * image.size / 3
        assert Box(0, 0, 120, 160) == around([part, Box(0, 0, 120, 160)])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(30, 40), (60, 80), (61, 80), (200, 300), (7, 5)])
def test_a_resize_that_mirrors_is_a_resize_and_a_flip(
    photo: Photo, interpolation: Literal["bilinear", "bicubic"], size: tuple[int, int]
) -> None:
    image = photo(60, 80)
    resized = resize(image, None, size, interpolation)
    assert np.array_equal(resize(image, None, size, interpolation, mirror=True), resized[:, ::-1])
    row = row_of(image, Resize(size, interpolation=interpolation), RandomHorizontalFlip(1), RandomHorizontalFlip(1))
    assert np.array_equal(row, resized)


def test_a_sliver_may_not_be_blown_up(photo: Photo) -> None:
    with pytest.raises(BadSample, match="on the way"):
        row_of(photo(1, 6000), Resize(1000), CenterCrop(8))
