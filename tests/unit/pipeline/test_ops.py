"""Single ops: what they accept, what they make of it, what they refuse."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import (
    CenterCrop,
    ColorJitter,
    Decode,
    Grayscale,
    Normalize,
    Op,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    ToLayout,
)


def test_an_int_size_means_a_square() -> None:
    assert RandomResizedCrop(224) == RandomResizedCrop([224]) == RandomResizedCrop((224, 224))
    assert CenterCrop(7).size == (7, 7)


def test_resize_keeps_an_int_as_the_shorter_side() -> None:
    assert Resize(256).size == Resize([256]).size == 256
    assert Resize([256, 128]).size == (256, 128)


@pytest.mark.parametrize(
    ("op", "height", "width", "expected"),
    [
        (Resize(256), 375, 500, (256, 341)),  # 341.33 is truncated
        (Resize(256), 500, 375, (341, 256)),
        (Resize(256), 256, 256, (256, 256)),
        (Resize(256, max_size=300), 375, 500, (225, 300)),
        (Resize(10, max_size=11), 1, 1000, (1, 11)),
        (Resize((3, 4)), 375, 500, (3, 4)),
        (Resize(None, max_size=640), 375, 500, (480, 640)),
        (Resize(None, max_size=640), 500, 333, (640, 426)),  # 426.24
        (Resize(None, max_size=9), 500, 500, (9, 9)),
        (Resize(None, max_size=9), 1, 500, (1, 9)),
    ],
)
def test_resize_works_out_the_size_as_torchvision_does(
    op: Resize, height: int, width: int, expected: tuple[int, int]
) -> None:
    assert op.result(height, width) == expected


def test_padding_of_one_two_or_four_values_means_torchvisions() -> None:
    assert Pad(3).padding == (3, 3, 3, 3)
    assert Pad([5]).padding == (5, 5, 5, 5)
    assert Pad([1, 2]).padding == (1, 2, 1, 2)
    assert Pad([1, 2, 3, 4]).padding == (1, 2, 3, 4)


def test_random_crop_pads_by_the_whole_shortfall_on_either_side() -> None:
    assert RandomCrop((10, 20), pad_if_needed=True).margins(8, 20) == (0, 2, 0, 2)
    assert RandomCrop(10, padding=1, pad_if_needed=True).margins(8, 20) == (1, 1, 1, 1)
    assert RandomCrop(10, padding=(1, 2)).margins(4, 4) == (1, 2, 1, 2)


def test_a_number_for_color_jitter_is_a_range_around_neutral() -> None:
    op = ColorJitter(0.4, 2, (0.5, 0.75), 0.1)
    assert op.brightness == (0.6, 1.4)
    assert op.contrast == (0.0, 3.0)
    assert op.saturation == (0.5, 0.75)
    assert op.hue == (-0.1, 0.1)
    assert ColorJitter().hue == (0.0, 0.0)
    assert ColorJitter().brightness == (1.0, 1.0)


def test_whole_numbers_and_floats_are_the_same_parameter() -> None:
    one, same = RandomHorizontalFlip(1), RandomHorizontalFlip(1.0)
    assert one == same
    assert isinstance(one.p, float)
    assert math.copysign(1.0, RandomHorizontalFlip(-0.0).p) == 1.0


def test_ops_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Decode().max_pixels = 1
    for name in ("max_pixel", "moves", "files"):
        with pytest.raises(FrozenInstanceError, match=f"'{name}' is no parameter of Decode: declare"):
            setattr(Decode(), name, 1)
    with pytest.raises(FrozenInstanceError):
        del Decode().max_pixels
    assert Decode().max_pixels == 64_000_000


def test_what_is_said_of_a_wrong_value_crosses_processes() -> None:
    with pytest.raises(SpecError) as caught:
        RandomResizedCrop(lambda: 0)  # type: ignore[arg-type]
    error = copy.copy(caught.value)  # by `__reduce__`, as pickle
    assert (str(error), error.field) == (str(caught.value), "size")


def test_ops_are_values() -> None:
    assert {Resize(8), Resize([8])} == {Resize(8)} != {CenterCrop(8)}
    assert repr(RandomHorizontalFlip(1)) == "RandomHorizontalFlip(p=1.0)"


REFUSED: list[tuple[Callable[[], Op], str]] = [
    (lambda: RandomResizedCrop(0), "size"),
    (lambda: RandomResizedCrop(-1), "size"),
    (lambda: RandomResizedCrop(True), "size"),
    (lambda: RandomResizedCrop(224.0), "size"),  # type: ignore[arg-type]
    (lambda: RandomResizedCrop(16385), "size"),
    (lambda: RandomResizedCrop((1, 2, 3)), "size"),
    (lambda: RandomResizedCrop("224"), "size"),  # type: ignore[arg-type]
    (lambda: RandomResizedCrop(8, scale=(1.0, 0.08)), "scale"),
    (lambda: RandomResizedCrop(8, scale=(0.0, 0.0)), "scale"),
    (lambda: RandomResizedCrop(8, scale=(0.1, 1.1)), "scale"),
    (lambda: RandomResizedCrop(8, scale=(0.1, math.nan)), "scale"),
    (lambda: RandomResizedCrop(8, scale=0.5), "scale"),  # type: ignore[arg-type]
    (lambda: RandomResizedCrop(8, ratio=(0.0, 1.0)), "ratio"),
    (lambda: RandomResizedCrop(8, ratio=(1.0, math.inf)), "ratio"),
    (lambda: RandomResizedCrop(8, interpolation="nearest"), "interpolation"),
    (lambda: RandomResizedCrop(8, antialias=False), "antialias"),
    (lambda: Resize(0), "size"),
    (lambda: Resize(256, max_size=256), "max_size"),
    (lambda: Resize(None), "size"),
    (lambda: Resize(None, max_size=0), "max_size"),
    (lambda: Resize([None], max_size=9), "size"),  # type: ignore[list-item]
    (lambda: Resize((2, 2), max_size=9), "max_size"),
    (lambda: CenterCrop(10**9), "size"),
    (lambda: RandomCrop(8, padding=-1), "padding"),
    (lambda: RandomCrop(8, padding=(1, 2, 3)), "padding"),
    (lambda: RandomCrop(8, pad_if_needed=1), "pad_if_needed"),  # type: ignore[arg-type]
    (lambda: RandomCrop(8, padding_mode="wrap"), "padding_mode"),
    (lambda: Pad(1, fill="white"), "fill"),  # type: ignore[arg-type]
    (lambda: Pad(1, fill=()), "fill"),
    (lambda: RandomHorizontalFlip(1.5), "p"),
    (lambda: RandomHorizontalFlip(True), "p"),
    (lambda: RandomHorizontalFlip(10**400), "p"),
    (lambda: ColorJitter(-0.1), "brightness"),
    (lambda: ColorJitter(contrast=(2, 1)), "contrast"),
    (lambda: ColorJitter(hue=0.6), "hue"),
    (lambda: ColorJitter(hue=(-0.6, 0.0)), "hue"),
    (lambda: Grayscale(2), "num_output_channels"),
    (lambda: Normalize([], [1, 1]), "mean"),
    (lambda: Normalize(0.5, [1]), "mean"),  # type: ignore[arg-type]
    (lambda: Normalize([0.5], [0]), "std"),
    (lambda: ToDtype("int64"), "dtype"),
    (lambda: ToDtype("float32", scale=1), "scale"),  # type: ignore[arg-type]
    (lambda: ToLayout("NHWC"), "layout"),
    (lambda: Decode(max_pixels=0), "max_pixels"),
    (lambda: Decode(max_pixels=2**40), "max_pixels"),
    (lambda: Decode(mode="L"), "mode"),
    (lambda: Decode(exif_orientation=None), "exif_orientation"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("build", "field"), REFUSED)
def test_a_wrong_parameter_is_refused_by_its_name(build: Callable[[], Op], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        build()
    assert caught.value.field == field
