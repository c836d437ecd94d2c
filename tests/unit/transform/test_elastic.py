"""An elastic deformation: torchvision's, from whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import CenterCrop, ElasticTransform
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform.elastic import Displacements
from prepserver.transform.moves import Displace
from prepserver.transform.noise import Noise
from prepserver.transform.objects import Objects
from tests.support.oracle import torchvision

SIZE = HEIGHT, WIDTH = 60, 90


def in_torchvision(field: Displacements) -> torch.Tensor:
    """The displacement as torchvision counts it: fractions of half the plane, (1, height, width, 2)."""
    pixels = np.moveaxis(field.steps, 0, -1) / 256.0
    return torch.from_numpy(pixels / (WIDTH / 2, HEIGHT / 2)).float()[None]


@pytest.mark.parametrize(("mode", "levels", "share"), [("nearest", 0, 0.99), ("bilinear", 3, 0.97)])
def test_pixels_come_from_where_torchvision_takes_them(
    photo: Callable[..., Any], mode: str, levels: int, share: float
) -> None:
    functional, image = torchvision("transforms.v2.functional"), photo(HEIGHT, WIDTH)
    field = Displacements(3, SIZE, (300.0, 200.0), (5.0, 4.0))
    wanted = functional.elastic(torch.from_numpy(image).permute(2, 0, 1), in_torchvision(field), mode, [9.0])
    found = field.look(image, None, mode, (9.0,))
    assert np.abs(field.steps).max() > 256
    difference = np.abs(found.astype(int) - wanted.permute(1, 2, 0).numpy())
    assert (difference <= levels).mean() >= share


def test_displacements_are_as_large_as_torchvisions() -> None:
    theirs = torchvision("transforms.v2").ElasticTransform([200.0, 100.0], [5.0, 3.0])
    torch.manual_seed(0)
    made = [theirs.make_params([torch.zeros(1, *SIZE)])["displacement"] for _ in range(12)]
    for axis, side in ((0, WIDTH), (1, HEIGHT)):
        wanted = np.mean([each[..., axis].std().item() * side / 2 for each in made])
        ours = [Displacements(key, SIZE, (200.0, 100.0), (5.0, 3.0)).steps[axis].std() / 256 for key in range(12)]
        assert np.mean(ours) == pytest.approx(wanted, rel=0.12)


def test_boxes_and_points_follow_as_in_torchvision() -> None:
    functional, tv = torchvision("transforms.v2.functional"), torchvision("tv_tensors")
    field = Displacements(4, SIZE, (300.0, 200.0), (5.0, 4.0))
    near = np.random.default_rng(0).uniform(0, 60, (8, 2))
    boxes = np.concatenate((near, near + 25.5), 1).astype(np.float32)
    points = np.concatenate((near, np.full((8, 1), 2)), 1).astype(np.float32)[:, None]
    found = Objects(SIZE, boxes, {"points": points}, {}, {"points": ()}).after([Displace(field)])
    shift = in_torchvision(field)
    wanted = functional.elastic(tv.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=SIZE), shift)
    assert np.abs(found.boxes - wanted.numpy()).max() < 1e-3
    given = tv.KeyPoints(torch.from_numpy(points[..., :2].copy()), canvas_size=SIZE)
    wanted = functional.elastic_keypoints(given.as_subclass(torch.Tensor), SIZE, shift)
    visible = found.points["points"][..., 2] > 0
    assert visible.sum() > 4
    assert np.abs(found.points["points"][..., :2] - wanted.numpy())[visible].max() < 1e-3


@pytest.mark.parametrize("size", [(1, 1), (3, 130), (70, 2)])
@pytest.mark.parametrize("sigma", [0.0, 0.4, 9.0])
def test_a_field_is_a_sum_of_whole_numbers(size: tuple[int, int], sigma: float) -> None:
    field = Displacements(7, size, (1e4, 1e4), (sigma, sigma))
    noise = Noise(7).uniform(2 * size[0] * size[1]).reshape(2, *size).astype(int) * 2 - 255
    reach = int(8 * sigma + 1) // 2
    weights = np.array([np.exp(-0.5 * (k / sigma) ** 2) if k else 1.0 for k in range(-reach, reach + 1)])
    kernel = np.rint(weights / weights.sum() * (1 << 20)).astype(int)
    for wide, steps in zip(noise, field.steps, strict=True):
        for axis in (0, 1):
            beside = np.pad(wide, [(reach, reach) if axis == k else (0, 0) for k in (0, 1)], "reflect")
            wide = np.lib.stride_tricks.sliding_window_view(beside, len(kernel), axis) @ kernel
        assert np.array_equal(steps, np.rint(wide * (1e4 / 2 / 2**40)).astype(int))


def test_no_strength_changes_nothing(photo: Callable[..., Any]) -> None:
    image = photo(HEIGHT, WIDTH)
    assert np.array_equal(Displacements(1, SIZE, (0.0, 0.0), (5.0, 5.0)).look(image, None, "bilinear", (9.0,)), image)


def test_parameters_out_of_range_are_named() -> None:
    for wrong, field in (({"alpha": -1}, "alpha"), ({"sigma": (1, 2, 3)}, "sigma"), ({"fill": (1, 2)}, "fill")):
        with pytest.raises(SpecError) as caught:
            Pipeline.from_ops([CenterCrop(9), ElasticTransform(**wrong)])
        assert caught.value.field.endswith(field)
