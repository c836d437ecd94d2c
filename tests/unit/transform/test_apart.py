"""Images of a sample that are moved by themselves: each row is as if its image were alone."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as Picture

from prepserver.pipeline.kinds import Image
from prepserver.pipeline.ops import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    Only,
    Op,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.transform import BadSample, SampleKey, make_rows, row_makers
from prepserver.transform.stage import Box

CAMERAS: Columns = {"top": Image((300, 400)), "wrist": Image((96, 128))}
UNKNOWN: Columns = {"top": Image(), "wrist": Image()}


def jpeg(height: int, width: int) -> bytes:
    coarse = np.random.default_rng(height).integers(0, 256, (6, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Picture.fromarray(coarse).resize((width, height), Picture.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


RECORD = {"top": jpeg(300, 400), "wrist": jpeg(96, 128)}


def rows(ops: Sequence[Op], columns: Columns, index: int, views: int = 1) -> dict[str, npt.NDArray[np.generic]]:
    pipeline = Pipeline.from_ops(ops, views, columns)
    made = {each.name: np.zeros(each.shape, each.dtype) for each in pipeline.fields if each.column != "index"}
    targets = [(maker, [made[each.name] for each in maker.fields]) for maker in row_makers(pipeline)]
    make_rows({name: RECORD[name] for name in columns}, SampleKey(7, 0, index), targets)
    return made


@pytest.mark.parametrize(
    "ops",
    [
        [],
        [ColorJitter(0.5, 0.5)],
        [RandomCrop(64), RandomHorizontalFlip(), GaussianBlur(3)],
        [RandomResizedCrop(24), RandomHorizontalFlip(), ToDtype("float32"), ToLayout("CHW")],
        [Resize(48), RandomHorizontalFlip()],
    ],
)
@pytest.mark.parametrize("views", [1, 2])
def test_declared_sizes_differ_and_each_image_is_as_if_alone(ops: list[Op], views: int) -> None:
    for index in range(4):
        both = rows(ops, CAMERAS, index, views)
        for name, kind in CAMERAS.items():
            for field, alone in rows(ops, {name: kind}, index, views).items():
                assert np.array_equal(both[field], alone)


@pytest.mark.parametrize("first", [True, False])
def test_only_moves_one_image_and_no_other(first: bool) -> None:
    crop, flip = RandomResizedCrop(24), RandomHorizontalFlip()
    ops = [Only("wrist", crop), Only("top", Resize((30, 40))), flip, Only("top", Grayscale(1))]
    columns = UNKNOWN if first else dict(reversed([*UNKNOWN.items()]))
    for index in range(4):
        both = rows(ops, columns, index)
        # An op's random numbers depend on its place.
        assert np.array_equal(both["wrist"], rows([crop, ColorJitter(0), flip], {"wrist": Image()}, index)["wrist"])
        top = [Resize((30, 40)), ColorJitter(0), flip, Grayscale(1)]  # a resize draws none
        assert np.array_equal(both["top"], rows(top, {"top": Image()}, index)["top"])


def test_the_first_op_of_an_image_gets_it_as_it_is_decoded() -> None:
    """It is decoded in part, or at a smaller scale, wherever the op stands, and never after another op of the image."""
    makers = row_makers(Pipeline.from_ops([Only("wrist", Resize((24, 24))), Only("top", RandomCrop(24))], 1, UNKNOWN))
    (maker,) = makers
    top, wrist = maker.images
    assert maker.plan(300, 400, SampleKey(7, 0, 0), column=top).part != Box(0, 0, 300, 400)
    assert maker.plan(960, 1280, SampleKey(7, 0, 0), column=wrist).scale > 1
    ops = [Only("wrist", ColorJitter(0.5)), Only("wrist", Resize((24, 24))), Only("top", RandomCrop(24))]
    (maker,) = row_makers(Pipeline.from_ops(ops, 1, UNKNOWN))
    assert maker.plan(960, 1280, SampleKey(7, 0, 0), column=wrist).scale == 1


def test_an_image_of_another_size_than_declared_is_bad() -> None:
    said = r"its wrist has 128 x 96 pixels .*, but is declared as kinds.Image\(\(128, 96\)\), \(height, width\)"
    with pytest.raises(BadSample, match=said):
        rows([ColorJitter(0.5)], {**CAMERAS, "wrist": Image((128, 96))}, 0)
