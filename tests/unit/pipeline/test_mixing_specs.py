"""Ops that make several images of a sample, or one of several samples, as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Boxes, Image, Label, Mask, PerBox
from prepserver.pipeline.ops import (
    CenterCrop,
    CopyPaste,
    FiveCrop,
    Grayscale,
    Mosaic,
    Op,
    PadBoxes,
    RandomCrop,
    Resize,
    TenCrop,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns

PHOTO: Columns = {"image": Image(), "label": Label()}
BOXES: Columns = {"image": Image(), "boxes": Boxes(), "labels": PerBox()}
INSTANCES: Columns = {**BOXES, "mask": Mask(), "instances": PerBox(dtype="int16")}
SIZE = (40, 48)


@pytest.mark.parametrize(("op", "views"), [(FiveCrop(8), 5), (TenCrop((8, 6), vertical_flip=True), 10)])
def test_crops_of_a_sample_are_its_views(op: Any, views: int) -> None:
    pipeline = Pipeline.from_ops([op], columns=PHOTO, views=views)
    assert {field.shape for field in pipeline.fields if field.name.startswith("image")} == {(*op.size, 3)}
    with pytest.raises(SpecError, match=f"must be {views}") as caught:
        Pipeline.from_ops([op], columns=PHOTO, views=2)
    assert caught.value.field == "views"


def test_a_mosaic_is_twice_as_large_and_needs_a_crop_or_not() -> None:
    (image, *_) = Pipeline.from_ops([Mosaic((8, 6))], columns=PHOTO).fields
    assert image.shape == (16, 12, 3)
    pipeline = Pipeline.from_ops([Mosaic(8), RandomCrop(8), PadBoxes(4)], columns=BOXES)
    assert {field.name: field.shape for field in pipeline.fields}["boxes"] == (4, 4)


@pytest.mark.parametrize(
    ("ops", "field"),
    [
        ([Resize((8, 8)), Mosaic(8), Mosaic(8)], "pipeline"),
        ([Resize((8, 8)), PadBoxes(4), Mosaic(8)], "pipeline[2].op"),
        ([Grayscale(), Mosaic(8, fill=(1, 2, 3)), CenterCrop(8), PadBoxes(4)], "pipeline[1].fill"),
    ],
)
def test_a_mosaic_that_cannot_be_is_refused(ops: list[Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        Pipeline.from_ops(ops, columns=BOXES)
    assert caught.value.field == field


def test_a_mosaic_larger_than_a_row_may_be_is_refused() -> None:
    with pytest.raises(SpecError, match="canvas is twice as large"):
        Mosaic(9000)


def test_a_paste_keeps_the_record_and_needs_instances() -> None:
    pipeline = Pipeline.from_ops([Resize(SIZE), CopyPaste(), PadBoxes(3)], columns=INSTANCES)
    assert {field.name: field.shape for field in pipeline.fields}["mask"] == SIZE
    semantic = {name: kind for name, kind in INSTANCES.items() if name != "instances"}
    cases: list[tuple[Callable[[], list[Op]], Columns, str]] = [
        (lambda: [Resize(SIZE), CopyPaste()], semantic, r"Coco\(masks=True\) gives both. 'instances' is no PerBox"),
        (lambda: [Resize(SIZE), CopyPaste("image")], INSTANCES, "'image' is no Mask here; there are: image"),
        (lambda: [Resize(40), CopyPaste()], INSTANCES, "needs one size: put ScaleJitter"),
        (
            lambda: [Resize(SIZE), CopyPaste()],
            {**INSTANCES, "mask": Mask(dtype="uint16")},
            "numbers of objects go to 255",
        ),
        (lambda: [Resize(SIZE), PadBoxes(3), CopyPaste()], INSTANCES, "cannot follow PadBoxes"),
        (lambda: [Mosaic(8), CopyPaste()], INSTANCES, "only one op of a pipeline may"),
        (lambda: [Resize(SIZE), CopyPaste()], {**INSTANCES, "instances": PerBox(dtype="int8")}, "cannot count to 255"),
    ]
    for ops, columns, said in cases:
        with pytest.raises(SpecError, match=said):
            Pipeline.from_ops([*ops(), PadBoxes(12)], columns=columns)
