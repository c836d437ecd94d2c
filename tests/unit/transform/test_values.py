"""Colours, element types, layouts: against torchvision's documented formulas, in plain float64."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from prepserver.pipeline.ops import (
    CenterCrop,
    ColorJitter,
    Grayscale,
    Normalize,
    Op,
    Pad,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import RowMaker, SampleKey

Pixels = npt.NDArray[np.uint8]
Photo = Callable[..., Pixels]
LUMA = np.array([0.2989, 0.587, 0.114])


def row_of(image: Pixels, *ops: Op, index: int = 3) -> Any:
    maker = RowMaker(Pipeline.from_ops([CenterCrop(image.shape[:2]), *ops]))
    out = np.full(maker.fields[0].shape, 77, maker.fields[0].dtype)
    before = image.copy()
    height, width, _ = image.shape
    plan = maker.plan(height, width, SampleKey(0, 0, index))
    maker.render(plan, plan.part.of(image), out)
    assert np.array_equal(image, before)
    return out


def close(row: Any, expected: npt.NDArray[Any]) -> bool:
    """Within one level of the exact result cut to a byte."""
    return bool(np.abs(row.astype(float) - np.floor(expected.clip(0, 255))).max() <= 1)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.7])
def test_brightness_multiplies(photo: Photo, factor: float) -> None:
    image = photo(40, 50)
    assert close(row_of(image, ColorJitter(brightness=(factor, factor))), image * factor)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.7])
def test_contrast_blends_with_the_mean_of_the_grey(photo: Photo, factor: float) -> None:
    image = photo(40, 50)
    mean = np.floor(image @ LUMA).mean()
    expected = image * factor + mean * (1 - factor)
    assert close(row_of(image, ColorJitter(contrast=(factor, factor))), expected)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.7])
def test_saturation_blends_with_the_grey(photo: Photo, factor: float) -> None:
    image = photo(40, 50)
    expected = image * factor + np.floor(image @ LUMA)[..., None] * (1 - factor)
    assert close(row_of(image, ColorJitter(saturation=(factor, factor))), expected)


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.25])
def test_hue_turns_the_colour_wheel(photo: Photo, shift: float) -> None:
    image = photo(20, 25)
    image[0, :6] = [(0, 0, 0), (255, 255, 255), (9, 9, 9), (255, 0, 0), (0, 255, 0), (0, 0, 255)]
    expected = np.empty(image.shape)
    for place in np.ndindex(20, 25):
        h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255.0))
        expected[place] = colorsys.hsv_to_rgb((h + shift) % 1.0, s, v)
    assert close(row_of(image, ColorJitter(hue=(shift, shift))), expected * (256 - 1e-3))


def test_factors_and_order_differ_from_sample_to_sample(photo: Photo) -> None:
    image = photo(30, 30)
    op = ColorJitter(0.4, 0.4, 0.4, 0.1)
    rows = {row_of(image, op, index=index).tobytes() for index in range(10)}
    assert len(rows) == 10
    fixed = ColorJitter((0.5, 0.5), (1.9, 1.9), (0.1, 0.1), (0.2, 0.2))
    orders = {row_of(image, fixed, index=index).tobytes() for index in range(60)}
    assert 6 < len(orders) <= 24


def test_a_jitter_without_spread_changes_nothing(photo: Photo) -> None:
    image = photo(30, 30)
    assert np.array_equal(row_of(image, ColorJitter()), image)


def test_jitter_of_one_channel_leaves_colour_out(photo: Photo) -> None:
    image = photo(30, 30)
    grey = row_of(image, Grayscale())
    assert np.array_equal(row_of(image, Grayscale(), ColorJitter(saturation=(0, 0), hue=(0.3, 0.3))), grey)
    expected = grey * 0.5 + grey.mean() * 0.5
    assert close(row_of(image, Grayscale(), ColorJitter(contrast=(0.5, 0.5))), expected)


def test_grey_is_the_weighted_sum(photo: Photo) -> None:
    image = photo(30, 40)
    one, three = row_of(image, Grayscale(1)), row_of(image, Grayscale(3))
    assert one.shape == (30, 40, 1)
    assert close(one[..., 0], image @ LUMA)
    assert np.array_equal(three, np.repeat(one, 3, axis=2))
    assert np.array_equal(row_of(image, Grayscale(1), Grayscale(3)), three)


@pytest.mark.parametrize(("dtype", "step"), [("float32", 1e-7), ("float16", 1e-3)])
def test_floats_are_scaled_to_one(photo: Photo, dtype: str, step: float) -> None:
    image = photo(30, 40)
    scaled = row_of(image, ToDtype(dtype, scale=True))
    assert scaled.dtype == dtype
    assert np.abs(scaled.astype(float) - image / 255.0).max() <= step
    assert np.array_equal(row_of(image, ToDtype(dtype, scale=False)), image.astype(dtype))
    assert np.array_equal(row_of(image, ToDtype("uint8")), image)


@pytest.mark.parametrize("layout", [[], [ToLayout("CHW")], [ToLayout("HWC")]])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 1e-2)])
def test_normalising_takes_the_mean_off_and_divides(
    photo: Photo, layout: list[Op], dtype: str, tolerance: float
) -> None:
    image = photo(30, 40)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    row = row_of(image, ToDtype(dtype, scale=True), Normalize(mean, std), *layout)
    if layout == [ToLayout("CHW")]:
        row = row.transpose(1, 2, 0)
    expected = (image / 255.0 - np.array(mean)) / np.array(std)
    assert np.abs(row.astype(float) - expected).max() <= tolerance


def test_one_mean_serves_all_channels(photo: Photo) -> None:
    image = photo(30, 40)
    row = row_of(image, ToDtype("float32", scale=True), Normalize([0.5], [0.25]), RandomHorizontalFlip(1))
    assert np.abs(row[:, ::-1] - (image / 255.0 - 0.5) / 0.25).max() < 1e-5


def test_padding_after_the_floats_has_a_float_colour(photo: Photo) -> None:
    row = row_of(photo(4, 4), ToDtype("float32", scale=True), Pad(1, fill=0.25))
    assert row[0, 0].tolist() == [0.25] * 3


@pytest.mark.parametrize(
    "ops",
    [
        [RandomResizedCrop(16)],
        [RandomResizedCrop(16), RandomHorizontalFlip(1), ColorJitter(0.4, 0.4, 0.4, 0.1)],
        [RandomHorizontalFlip(1)],
        [Grayscale()],
        [RandomResizedCrop(16), ToDtype("float16")],
    ],
)
def test_a_planar_row_holds_the_same_values_in_another_order(photo: Photo, ops: list[Op]) -> None:
    image = photo(30, 40)
    planar = row_of(image, *ops, ToLayout("CHW"))
    assert np.array_equal(planar.transpose(1, 2, 0), row_of(image, *ops))
    assert np.array_equal(row_of(image, *ops, ToLayout("HWC")), row_of(image, *ops))


def test_a_row_of_another_shape_is_refused(photo: Photo) -> None:
    maker = RowMaker(Pipeline.from_ops([CenterCrop(8)]))
    with pytest.raises(ValueError, match="the row is"):
        maker.render(maker.plan(9, 9, SampleKey(0, 0, 0)), photo(9, 9), np.zeros((8, 8, 1), np.uint8))
