"""The changes of `RandAugment` as data: how strong they are, and through which matrix a warp sees an image."""

from __future__ import annotations

import pytest

from prepserver.pipeline.affine import affine
from prepserver.pipeline.changes import ALL, GEOMETRY, Scales, matrix
from prepserver.pipeline.ops import RandAugment

SIZE = (60, 90)


def test_a_scale_grows_from_nothing_to_its_greatest_magnitude() -> None:
    greatest = {
        "ShearX": 0.3, "ShearY": 0.3, "TranslateX": 90 * 150 / 331, "TranslateY": 60 * 150 / 331, "Rotate": 30.0,
        "Brightness": 0.9, "Color": 0.9, "Contrast": 0.9, "Sharpness": 0.9, "Posterize": 4, "Solarize": 0.0,
    }  # fmt: skip
    scales = RandAugment().scales
    assert {name: scales.magnitude(name, 30, SIZE) for name in ALL} == {**dict.fromkeys(ALL, 0.0), **greatest}
    least = {"Posterize": 8, "Solarize": 1.0}
    assert {name: scales.magnitude(name, 0, SIZE) for name in ALL} == {**dict.fromkeys(ALL, 0.0), **least}
    assert Scales(31, 0.0, 32.0, 0.0, 0.0, (8, 4)).magnitude("TranslateX", 15, SIZE) == 16.0


@pytest.mark.parametrize(
    ("name", "magnitude", "point", "shown"),
    [
        ("ShearX", 0.5, (10, 20), (20, 20)),
        ("ShearY", 0.5, (10, 20), (10, 25)),
        ("TranslateX", 7.9, (10, 20), (3, 20)),
        ("TranslateY", -7.9, (10, 20), (10, 27)),
        ("Rotate", 90.0, (45, 10), (65, 30)),
    ],
)
def test_a_matrix_says_which_point_is_shown(
    name: str, magnitude: float, point: tuple[int, int], shown: tuple[int, int]
) -> None:
    a, b, c, d, e, f, *_ = matrix(name, magnitude, SIZE)
    x, y = point
    assert (a * x + b * y + c, d * x + e * y + f) == pytest.approx(shown)


def test_without_strength_every_point_shows_itself() -> None:
    for name in GEOMETRY:
        assert matrix(name, 0.0, SIZE) == pytest.approx(affine(SIZE))
