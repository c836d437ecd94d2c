"""`FiveCrop` and `TenCrop`: each view is one of torchvision's crops, and everything on the plane follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Mask
from prepserver.pipeline.ops import CenterCrop, FiveCrop, Op, RandomApply, TenCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import BadSample, SampleKey, make_rows, row_makers
from tests.support.oracle import torchvision


def views_of(op: Op, image: Any, mask: Any) -> list[tuple[Any, Any]]:
    pipeline = Pipeline.from_ops([op], op.views, {"image": Image(), "mask": Mask()})
    assert Pipeline.from_wire(pipeline.to_wire(), pipeline.columns) == pipeline
    makers = row_makers(pipeline)
    rows = [[np.zeros(field.shape, field.dtype) for field in maker.fields] for maker in makers]
    make_rows({"image": image, "mask": mask}, SampleKey(0, 0, 0), list(zip(makers, rows, strict=True)))
    return [(row[0], row[1]) for row in rows]


@pytest.mark.parametrize(
    ("op", "name"),
    [(FiveCrop((21, 30)), "five_crop"), (TenCrop(24), "ten_crop"), (TenCrop([21, 30], True), "ten_crop")],
)
def test_views_are_the_crops_of_torchvision(photo: Callable[..., Any], op: Any, name: str) -> None:
    image = photo(40, 61)
    arguments = {"vertical_flip": op.vertical_flip} if isinstance(op, TenCrop) else {}
    given = torch.from_numpy(image).permute(2, 0, 1)
    wanted = getattr(torchvision("transforms.v2.functional"), name)(given, list(op.size), **arguments)
    found = views_of(op, image, np.ascontiguousarray(image[..., 1]))
    assert len(found) == len(wanted) == op.views
    for (pixels, classes), crop in zip(found, wanted, strict=True):
        assert np.array_equal(pixels, crop.permute(1, 2, 0).numpy())
        assert np.array_equal(classes, pixels[..., 1])


def test_they_need_their_views() -> None:
    for op, views in ((FiveCrop(9), 1), (TenCrop(9), 5)):
        with pytest.raises(SpecError, match=f"must be {op.views}: {type(op).__name__} makes {op.views} views"):
            Pipeline.from_ops([CenterCrop(20), op], views)
    with pytest.raises(SpecError, match="must be an op that"):
        RandomApply([FiveCrop(9)])


def test_an_image_smaller_than_a_crop_is_bad(photo: Callable[..., Any]) -> None:
    image = photo(20, 30)
    with pytest.raises(BadSample, match="20x30 pixels are too few for crops of 21x9"):
        views_of(FiveCrop((21, 9)), image, image[..., 0])
