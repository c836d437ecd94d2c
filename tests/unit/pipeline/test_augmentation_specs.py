"""What random ops accept, and what is known of a record whatever they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.ops import (
    JPEG,
    CenterCrop,
    Decode,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    Normalize,
    Only,
    Op,
    Pad,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomEqualize,
    RandomErasing,
    RandomInvert,
    RandomOrder,
    RandomResize,
    RandomRotation,
    Resize,
    ToDtype,
    ToLayout,
    op_from_wire,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import images
from tests.support.augmentations import OTHER_SIZE, SAME_SIZE

CONTAINERS: list[Op] = [
    RandomApply([RandomInvert()]), RandomChoice([RandomInvert(), RandomEqualize()], p=[1, 2]),
    RandomOrder([RandomInvert(), RandomRotation(3)]),
]  # fmt: skip


@pytest.mark.parametrize("op", [*SAME_SIZE, *CONTAINERS])
def test_an_op_that_changes_values_leaves_the_size(op: Op) -> None:
    pipeline = Pipeline.from_ops([CenterCrop(16), op])
    assert pipeline.row.shape == (16, 16, 3)
    assert Pipeline.from_wire(pipeline.to_wire()) == pipeline


@pytest.mark.parametrize("op", OTHER_SIZE)
def test_an_op_that_draws_a_size_needs_a_crop_after_it(op: Op) -> None:
    with pytest.raises(SpecError, match="differ in shape"):
        Pipeline.from_ops([CenterCrop(16), op])
    pipeline = Pipeline.from_ops([op, CenterCrop(16)])
    assert Pipeline.from_wire(pipeline.to_wire()) == pipeline


MANY_ORDERS = RandomOrder([RandomOrder([RandomInvert()] * 20)] * 20)
"""Small in a message, and a second of the daemon's time if each order was tried."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomApply([]), "1 to 32 values"),
        (lambda: RandomApply([Decode()]), r"transforms\[0\] = .*must be an op that names no column by itself"),
        (lambda: RandomApply([Only("image", Grayscale())]), "names no column"),
        (lambda: RandomChoice([ToLayout()]), "names no column"),
        (lambda: RandomOrder([RandomApply([RandomApply([Grayscale()])])]), "nested more than 2 deep"),
        (lambda: RandomChoice([Grayscale(3)], p=[0]), "leave one op to choose"),
        (lambda: RandomChoice([Grayscale(3)], p=[5e-324]), "their sum must be at least 1e-09"),
        (lambda: RandomChoice([Grayscale(3)], p=[1, 2]), "list of 1 values"),
        (lambda: RandomApply([{"op": "Resize", "size": 0}]), r"transforms\[0\].size = 0"),
        (lambda: pipeline_of(RandomApply([Grayscale(1)])), "other channels, dtype or layout"),
        (lambda: pipeline_of(RandomApply([CenterCrop(9)])), "differ in shape"),
        (lambda: pipeline_of(RandomApply([ToDtype("float32"), RandomInvert()], p=1)), "transforms.op.*works on uint8"),
        (lambda: pipeline_of(RandomOrder([CenterCrop(9), Pad(2)])), "differ in shape"),
        (lambda: pipeline_of(MANY_ORDERS), "more than 65536: put fewer ops into RandomOrder"),
        (lambda: pipeline_of(Only("image", MANY_ORDERS)), "more than 65536: put fewer ops into RandomOrder"),
        (lambda: pipeline_of(ToDtype("float32"), RandomErasing(value=(1, 2, 3)), RandomInvert()), "works on uint8"),
        (lambda: pipeline_of(RandomErasing(value=0.5)), "value = .*whole numbers from 0 to 255"),
        (lambda: RandomErasing(value="noise"), 'or "random"'),
        (lambda: pipeline_of(ToDtype("float16"), RandomErasing(value=70_000)), "is too large for float16"),
        (lambda: pipeline_of(ToDtype("float16"), Pad(1, fill=(0, 0, -1e6))), "fill = .*is too large for float16"),
        (lambda: pipeline_of(ToDtype("float32"), Normalize([1e39], [1])), "mean = .*is too large for float32"),
        (lambda: pipeline_of(ToDtype("float16"), Normalize([1], [1e-8])), "std = .*is 0 in float16"),
        (lambda: pipeline_of(ToDtype("float32"), GaussianNoise()), r"scale=True\) and before Normalize"),
        (lambda: GaussianBlur(4), "must be odd"),
        (lambda: RandomRotation(10, "bicubic"), "must be 'nearest' or 'bilinear'"),
        (lambda: pipeline_of(RandomRotation(10, fill=(1, 2))), "1 value or one for each of 3 channels"),
        (lambda: RandomRotation(10, mask_fill=65536), "mask_fill = 65536: must lie between 0 and 65535"),
        (lambda: Pipeline.from_ops([Pad(2, mask_fill=256)], columns=images(mask=True)), "above 255, and the mask is"),
        (lambda: Resize(8, cover=True), r"cover = True: needs \(height, width\)"),
        (lambda: RandAugment(magnitude=31), "must be below num_magnitude_bins"),
        (lambda: JPEG((90, 10)), "must lie between 90 and 100"),
        (lambda: RandomResize(20, 20), "greater than min_size"),
        (lambda: RandomAffine(0, shear=(1, 2, 3)), "2 or 4 values"),
    ],
)
def test_an_op_that_cannot_be_says_why(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


def test_a_class_for_masks_is_on_the_wire_only_if_given() -> None:
    wire = {"op": "Pad", "padding": [2, 2, 2, 2], "fill": [0.0], "padding_mode": "constant"}  # as in release 0.2
    assert Pad(2).to_wire() == wire
    assert op_from_wire(wire) == Pad(2)
    assert RandomApply([Pad(2)]).to_wire()["transforms"] == [wire]
    assert Pad(2, mask_fill=255).to_wire() == {**wire, "mask_fill": 255}
    assert op_from_wire({**wire, "mask_fill": 255}) == Pad(2, mask_fill=255)


def pipeline_of(*ops: Op) -> Pipeline:
    return Pipeline.from_ops([CenterCrop(16), *ops])


def test_the_size_of_a_cover_is_known_where_the_images_is() -> None:
    for size, covered in (((20, 40), (10, 20)), ((40, 20), (24, 12)), ((10, 12), (10, 12))):
        pipeline = Pipeline.from_ops([Resize((10, 12), cover=True)], columns={"image": Image(size)})
        assert pipeline.fields[0].shape == (*covered, 3)


def test_what_chance_leaves_open_is_open_in_the_record() -> None:
    floats = [ToDtype("float32", scale=True), RandomApply([Normalize([0.5], [0.2])])]
    with pytest.raises(SpecError, match="before Normalize"):
        pipeline_of(*floats, GaussianNoise())
    (field, *_) = pipeline_of(*floats).fields
    assert field.shape == (16, 16, 3)
    same = RandomChoice([CenterCrop(9), Resize((9, 9))])
    assert Pipeline.from_ops([same]).row.shape == (9, 9, 3)
    assert Pipeline.from_ops([RandomOrder([CenterCrop(9), RandomRotation(3)])]).row.shape == (9, 9, 3)
