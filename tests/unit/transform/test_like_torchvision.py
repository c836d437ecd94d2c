"""Ops against torchvision v2 on uint8 tensors, with the same parameters: where pixels come from, and what they become.

Tolerances: tables and neighbourhoods differ by at most one level. The nearest pixel differs where a point lies on the
border of two, in less than one of 200. A bilinear blend counts 256ths of a pixel, so it differs by two levels on smooth
images; within a pixel of the image's edge torchvision mixes in the fill.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from prepserver.pipeline.changes import ALL
from prepserver.pipeline.ops import (
    JPEG,
    AugMix,
    AutoAugment,
    CenterCrop,
    GaussianBlur,
    GaussianNoise,
    Op,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomResize,
    RandomRotation,
    RandomShortestSize,
    RandomSolarize,
    ScaleJitter,
    ToDtype,
    TrivialAugmentWide,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import RowMaker, SampleKey
from prepserver.transform.augment import Changes, augmented
from prepserver.transform.ops import stage_of
from prepserver.transform.ops.auto_augment import AutoAugmentStage
from prepserver.transform.stage import Draws
from prepserver.transform.warp import perspective
from tests.support.oracle import torchvision

Pixels = npt.NDArray[np.uint8]
Photo = Callable[..., Pixels]
HEIGHT, WIDTH = 60, 90


def row_of(image: Pixels, *ops: Op, index: int = 0) -> Any:
    maker = RowMaker(Pipeline.from_ops([CenterCrop(image.shape[:2]), *ops]))
    out = np.full(maker.fields[0].shape, 77, maker.fields[0].dtype)
    plan = maker.plan(image.shape[0], image.shape[1], SampleKey(0, 0, index))
    maker.render(plan, plan.part.of(image), out)
    return out


def tensor(image: Pixels) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1).contiguous()


def pixels(result: torch.Tensor) -> Pixels:
    return np.asarray(result.permute(1, 2, 0).numpy(), np.uint8)


def assert_near(found: Any, wanted: Any, levels: int = 1, share: float = 1.0) -> None:
    assert found.shape == wanted.shape
    difference = np.abs(found.astype(int) - wanted.astype(int))
    assert (difference <= levels).mean() >= share, (difference.max(), (difference > levels).mean())


def inside(image: Pixels) -> Pixels:
    """Where the photo lies on a canvas of zeros, without its edge: 1 there and 0 elsewhere."""
    return np.asarray(image.min(axis=2) > 0, np.uint8)


@pytest.mark.parametrize(
    ("op", "name", "arguments"),
    [
        (RandomInvert(1), "invert", {}),
        (RandomPosterize(3, 1), "posterize", {"bits": 3}),
        (RandomPosterize(0, 1), "posterize", {"bits": 0}),
        (RandomPosterize(8, 1), "posterize", {"bits": 8}),
        (RandomSolarize(100.5, 1), "solarize", {"threshold": 100.5}),
        (RandomSolarize(0, 1), "solarize", {"threshold": 0}),
        (RandomAutocontrast(1), "autocontrast", {}),
        (RandomEqualize(1), "equalize", {}),
        (RandomAdjustSharpness(0, 1), "adjust_sharpness", {"sharpness_factor": 0}),
        (RandomAdjustSharpness(2.5, 1), "adjust_sharpness", {"sharpness_factor": 2.5}),
        (RandomGrayscale(1), "rgb_to_grayscale", {"num_output_channels": 3}),
        (GaussianBlur(3, 0.7), "gaussian_blur", {"kernel_size": [3, 3], "sigma": [0.7, 0.7]}),
        (GaussianBlur((23, 5), 2), "gaussian_blur", {"kernel_size": [23, 5], "sigma": [2.0, 2.0]}),
        (GaussianBlur(9, 0.1), "gaussian_blur", {"kernel_size": [9, 9], "sigma": [0.1, 0.1]}),
    ],
)
def test_changes_of_values_are_torchvisions(photo: Photo, op: Op, name: str, arguments: dict[str, Any]) -> None:
    functional = torchvision("transforms.v2.functional")
    flat = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    flat[..., 1], flat[5:9, 5:9, 2] = 7, 200  # channels with one value and with two
    for image in (photo(HEIGHT, WIDTH), photo(HEIGHT, WIDTH) // 3 + 50, flat):
        assert_near(row_of(image, op), pixels(getattr(functional, name)(tensor(image), **arguments)))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    ("op", "name", "arguments"),
    [
        (lambda mode: RandomRotation((33, 33), mode), "rotate", {"angle": 33.0}),
        (lambda mode: RandomRotation((90, 90), mode), "rotate", {"angle": 90.0}),
        (
            lambda mode: RandomRotation((-20, -20), mode, center=(9, 20)),
            "rotate",
            {"angle": -20.0, "center": [9, 20]},
        ),
        (
            lambda mode: RandomAffine((15, 15), None, (1.3, 1.3), (5, 5, 10, 10), mode),
            "affine",
            {"angle": 15.0, "translate": [0, 0], "scale": 1.3, "shear": [5.0, 10.0]},
        ),
        (
            lambda mode: RandomAffine((-40, -40), None, (0.6, 0.6), (-20, -20), mode, center=(3, 50)),
            "affine",
            {"angle": -40.0, "translate": [0, 0], "scale": 0.6, "shear": [-20.0, 0.0], "center": [3, 50]},
        ),
    ],
)
def test_warps_take_pixels_from_where_torchvision_does(
    photo: Photo, op: Callable[[str], Op], name: str, arguments: dict[str, Any], mode: str
) -> None:
    functional = torchvision("transforms.v2.functional")
    image = photo(HEIGHT, WIDTH).clip(1)
    found = row_of(image, op(mode))
    wanted = pixels(getattr(functional, name)(tensor(image), interpolation=mode, **arguments))
    assert_near(inside(found), inside(wanted), 0, 0.97)
    both = (inside(found) & inside(wanted)).astype(bool)
    assert_near(found[both], wanted[both], *((2, 0.96) if mode == "bilinear" else (0, 0.995)))


def test_a_turned_image_is_held_whole_if_asked() -> None:
    functional = torchvision("transforms.v2.functional")
    for angle in (10.0, 45.0, 90.0, 133.0, -77.7):
        stage = stage_of(RandomRotation((angle, angle), expand=True), 1)
        drawn = stage.draw(HEIGHT, WIDTH, Draws(SampleKey(0, 0, 0), 1))
        wanted = functional.rotate(torch.zeros((1, HEIGHT, WIDTH), dtype=torch.uint8), angle, expand=True)
        assert (drawn.height, drawn.width) == tuple(wanted.shape[1:])


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_corners_go_where_torchvision_puts_them(photo: Photo, mode: str) -> None:
    functional = torchvision("transforms.v2.functional")
    image = photo(HEIGHT, WIDTH).clip(1)
    start = [[0, 0], [WIDTH - 1, 0], [WIDTH - 1, HEIGHT - 1], [0, HEIGHT - 1]]
    for index in range(5):
        stage = stage_of(RandomPerspective(0.6, 1, mode), 1)
        drawn = stage.draw(HEIGHT, WIDTH, Draws(SampleKey(0, 0, index), 1))
        draws = Draws(SampleKey(0, 0, index), 1)
        draws.uniform()
        reach = [int(0.6 * (side // 2)) + 1 for side in (WIDTH, HEIGHT)]
        ends = [
            [draws.below(reach[0]) + x * (WIDTH - reach[0]), draws.below(reach[1]) + y * (HEIGHT - reach[1])]
            for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))
        ]
        assert drawn.step is not None
        found = drawn.step(image, None)
        wanted = pixels(functional.perspective(tensor(image), start, ends, interpolation=mode))
        assert_near(inside(found), inside(wanted), 0, 0.95)
        both = (inside(found) & inside(wanted)).astype(bool)
        assert_near(found[both], wanted[both], *((3, 0.95) if mode == "bilinear" else (0, 0.98)))


def test_corners_on_one_line_leave_the_image_alone() -> None:
    assert perspective((10, 10), [(0, 0), (5, 0), (9, 0), (3, 0)]) is None
    assert perspective((1, 10), [(0, 0), (9, 0), (9, 0), (0, 0)]) is None


@pytest.mark.parametrize("name", [*ALL, "Invert"])
def test_each_change_of_an_augmentation_is_torchvisions(photo: Photo, name: str) -> None:
    theirs = torchvision("transforms.v2").RandAugment()
    image = photo(HEIGHT, WIDTH).clip(1)
    magnitudes = {"Posterize": (2, 5), "Solarize": (0.3, 1.0), "Rotate": (-25.0, 10.0)}.get(name, (-0.2137, 0.6871))
    if name.startswith("Translate"):
        magnitudes = (-20.7, 31.2)
    for magnitude in magnitudes:
        drawn = augmented(name, magnitude, HEIGHT, WIDTH, "nearest", (0.0,))
        found = image if drawn.step is None else drawn.step(image, None)
        wanted = pixels(theirs._apply_image_or_video_transform(tensor(image), name, magnitude, "nearest", {}))
        assert_near(found, wanted, 1, 0.97 if drawn.moves else 1.0)


@pytest.mark.parametrize(
    ("op", "bins", "indices"),
    [
        (RandAugment(), 31, (0, 9, 30)),
        (TrivialAugmentWide(), 31, (0, 13, 30)),
        (AutoAugment(), 10, (0, 7, 9)),
        (AugMix(), 10, (0, 2, 9)),
    ],
)
def test_the_scales_of_changes_are_torchvisions(op: Op, bins: int, indices: tuple[int, ...]) -> None:
    theirs = getattr(torchvision("transforms.v2"), type(op).__name__)
    changes: Changes = stage_of(op, 1)._changes  # type: ignore[attr-defined]
    for name, (magnitudes, signed) in theirs._AUGMENTATION_SPACE.items():
        for index in indices:
            table = magnitudes(bins, HEIGHT, WIDTH)
            found = {changes.magnitude(name, index, HEIGHT, WIDTH, Draws(SampleKey(0, 0, n), 1)) for n in range(20)}
            if table is None:
                assert found == {0.0}
            else:
                assert [abs(each) for each in found] == pytest.approx([float(table[index])] * len(found), abs=1e-4)
                assert len(found) == (2 if signed and table[index] else 1)


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_the_policies_are_torchvisions(policy: str) -> None:
    v2 = torchvision("transforms.v2")
    theirs = v2.AutoAugment()._get_policies(v2.AutoAugmentPolicy(policy))
    ours = stage_of(AutoAugment(policy), 1)
    assert isinstance(ours, AutoAugmentStage)
    assert [
        tuple((name, float(p), int(step[0]) if step else None) for name, p, *step in pair) for pair in ours._pairs
    ] == theirs


def test_a_jpegs_traces_are_those_of_pillow(photo: Photo) -> None:
    from PIL import Image

    functional, image = torchvision("transforms.v2.functional"), photo(HEIGHT, WIDTH)
    for quality in (5, 75, 100):
        assert_near(row_of(image, JPEG(quality)), np.asarray(functional.jpeg(Image.fromarray(image), quality)), 2)
    assert len({row_of(image, JPEG((1, 100)), index=n).tobytes() for n in range(8)}) > 4


@pytest.mark.parametrize(
    ("ours", "name", "arguments"),
    [
        (RandomResize(20, 40), "RandomResize", (20, 40)),
        (RandomShortestSize([20, 30, 40], 50), "RandomShortestSize", ([20, 30, 40], 50)),
        (RandomShortestSize(25), "RandomShortestSize", (25,)),
        (ScaleJitter((40, 80), (0.5, 1.5)), "ScaleJitter", ((40, 80), (0.5, 1.5))),
    ],
)
def test_drawn_sizes_are_those_that_torchvision_draws(ours: Op, name: str, arguments: tuple[Any, ...]) -> None:
    theirs = getattr(torchvision("transforms.v2"), name)(*arguments)
    torch.manual_seed(0)
    wanted = {tuple(theirs(torch.zeros((1, HEIGHT, WIDTH), dtype=torch.uint8)).shape[1:]) for _ in range(400)}
    stage = stage_of(ours, 2)
    drawn = [stage.draw(HEIGHT, WIDTH, Draws(SampleKey(0, 0, n), 2)) for n in range(400)]
    found = {(each.height, each.width) for each in drawn}
    assert min(found) == min(wanted)
    assert max(found) == max(wanted)
    assert len(found & wanted) >= 0.85 * len(wanted)


def test_noise_has_the_mean_and_deviation_that_is_asked_for() -> None:
    image = np.full((200, 200, 3), 120, np.uint8)
    row = row_of(image, GaussianNoise(0.1, 0.05)).astype(float)
    assert abs(row.mean() - 120 - 25.5) < 0.6  # cut to whole levels
    assert abs(row.std() - 12.75) < 0.3
    floats = row_of(image, ToDtype("float32", scale=True), GaussianNoise(0.1, 0.05))
    assert abs(floats.mean() - 120 / 255 - 0.1) < 0.002
    assert abs(floats.std() - 0.05) < 0.001
    assert row_of(image, GaussianNoise(1.0)).min() == 255
    assert row_of(image, GaussianNoise(0.6, 0.0, clip=False)).max() == 120 + 153 - 256


def test_an_erased_part_is_a_rectangle_of_its_share(photo: Photo) -> None:
    image, shares = photo(HEIGHT, WIDTH).clip(1), []
    for index in range(60):
        erased = (row_of(image, RandomErasing(1, (0.1, 0.3), (0.5, 2.0)), index=index) == 0).all(axis=2)
        rows, columns = erased.any(1), erased.any(0)
        assert erased.sum() == rows.sum() * columns.sum()
        assert 0.45 < rows.sum() / columns.sum() < 2.2
        shares.append(erased.mean())
    assert 0.09 < min(shares) < 0.13
    assert 0.25 < max(shares) < 0.32
    assert np.array_equal(row_of(image, RandomErasing(0)), image)
    assert np.array_equal(row_of(image, RandomErasing(1, ratio=(500, 900))), image)  # it does not fit


def test_an_erased_part_has_the_value_in_the_units_of_its_place(photo: Photo) -> None:
    image = photo(HEIGHT, WIDTH)
    coloured = row_of(image, RandomErasing(1, value=(124, 116, 104)))
    assert (coloured == (124, 116, 104)).all(axis=2).sum() >= 0.015 * HEIGHT * WIDTH
    floats = row_of(image, ToDtype("float32", scale=True), RandomErasing(1, (0.3, 0.3), value="random"))
    assert ((floats < 0) | (floats > 1)).mean() > 0.15  # of a normal distribution
    noisy = row_of(np.zeros_like(image), RandomErasing(1, (0.3, 0.3), value="random"))
    assert 100 < noisy[noisy > 0].mean() < 156


def test_channels_change_places(photo: Photo) -> None:
    image = photo(20, 20)
    rows = [row_of(image, RandomChannelPermutation(), index=n) for n in range(60)]
    assert len({row.tobytes() for row in rows}) == 6
    assert all(np.array_equal(np.sort(row, axis=2), np.sort(image, axis=2)) for row in rows)


def test_photometric_distortion_draws_each_change(photo: Photo) -> None:
    image = photo(20, 20)
    assert np.array_equal(row_of(image, RandomPhotometricDistort(p=0)), image)
    none = dict.fromkeys(("brightness", "contrast", "saturation"), (1.0, 1.0))
    for name, value in {
        "brightness": (0.5, 0.5),
        "contrast": (0.5, 0.5),
        "saturation": (0, 0),
        "hue": (0.3, 0.3),
    }.items():
        op = RandomPhotometricDistort(**{**none, "hue": (0.0, 0.0), name: value}, p=1)
        assert not np.array_equal(np.sort(row_of(image, op), axis=2), np.sort(image, axis=2))
    assert len({row_of(image, RandomPhotometricDistort(), index=n).tobytes() for n in range(30)}) > 20


def test_a_mix_is_a_blend_of_the_image_with_changes_of_it(photo: Photo) -> None:
    image = photo(HEIGHT, WIDTH)
    rows = [row_of(image, AugMix(alpha=alpha), index=n) for n in range(6) for alpha in (0.3, 1.0, 5.0)]
    assert len({row.tobytes() for row in rows}) >= len(rows) - 2  # all of a chain's changes may be of no strength
    correlations = [np.corrcoef(row.ravel(), image.ravel())[0, 1] for row in rows]
    assert sorted(correlations)[len(rows) // 2] > 0.8
    assert min(row_of(image, AugMix(alpha=0.001), index=n).max() for n in range(12)) > 100  # none is black
    fixed = AugMix(severity=1, chain_depth=1, all_ops=False)
    assert len({row_of(image, fixed, index=n).tobytes() for n in range(6)}) >= 4
