"""The letterbox of docs/augmentation.md is torchvision's, and docs/migrating.md maps its boxes back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from prepclient import CenterCrop, Coco, Pad, PadBoxes, PrepClient, RandomCrop, Resize, Subset
from prepserver.pipeline.ops import Op
from prepserver.transform import native
from tests.support.complete import missing
from tests.support.oracle import torchvision

DOCS = Path(__file__).parents[3] / "docs"
SIDE = 64
SIZES = ((45, 60), (60, 41), (50, 50), (200, 133), (64, 63), (97, 640), (1, 90), (33, 64))
"""(height, width) of larger and smaller images, some with an odd shortfall."""

Samples = list[tuple[torch.Tensor, dict[str, torch.Tensor]]]


@pytest.fixture(params=["native", "pure"], autouse=True)
def each_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PREPSERVER_NATIVE", "0" if request.param == "pure" else "")
    native.forget()
    if native.path().name != request.param:
        missing(f"no compiled kernels: {native.path().reason}")
    yield
    monkeypatch.undo()
    native.forget()


@pytest.fixture
def coco(tmp_path: Path) -> Coco:
    """An image of each size with one object, which its mask shows."""
    images, annotations = [], []
    for number, (height, width) in enumerate(SIZES):
        image = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(image).save(tmp_path / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": height, "width": width})
        left, top, right, bottom = 0.2 * width, 0.3 * height, 0.9 * width, 0.8 * height
        annotations.append(
            {"id": number + 1, "image_id": number, "category_id": 1, "iscrowd": 0,
             "bbox": [left, top, right - left, bottom - top],
             "segmentation": [[left, top, right, top, right, bottom, left, bottom]]}
        )  # fmt: skip
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return Coco(tmp_path, tmp_path / "boxes.json", sizes=True)


def made(source: Coco | Subset, *ops: Op) -> Samples:
    with PrepClient(source, [*ops, PadBoxes(2)], batch_size=3, collate="list", inline=True) as client:
        return [sample for batch in client for sample in zip(*batch, strict=True)]


def placed(size: tuple[int, int]) -> tuple[int, int, int, int]:
    """(top, left, height, width) of an image in its letterbox."""
    height, width = (max(1, SIDE * side // max(size)) for side in size)
    return (SIDE - height) // 2, (SIDE - width) // 2, height, width


def test_it_is_torchvisions_with_boxes_and_masks(coco: Coco) -> None:
    pytest.importorskip("pycocotools")
    v2, tv = torchvision("transforms.v2.functional"), torchvision("tv_tensors")
    source = Coco(coco.root, coco.annotations, masks=True, sizes=True)
    samples = made(source, Resize(None, max_size=SIDE), CenterCrop(SIDE))
    untouched = [made(Subset(source, [n]), CenterCrop(size))[0] for n, size in enumerate(SIZES)]
    for size, (image, target), (whole, given) in zip(SIZES, samples, untouched, strict=True):
        across, down = (SIDE - side for side in placed(size)[:1:-1])
        bars = [across // 2, down // 2, across - across // 2, down - down // 2]
        boxes = tv.BoundingBoxes(given["boxes"], format="XYXY", canvas_size=size)
        values = [tv.Image(whole), tv.Mask(given["mask"]), boxes]
        if min(placed(size)[2:]) > 1:  # torchvision gives a sliver no pixel, and refuses it
            values = [v2.resize(each, None, max_size=SIDE) for each in values]
            assert tuple(values[0].shape[1:]) == placed(size)[2:]
        else:
            values = [v2.resize(each, list(placed(size)[2:])) for each in values]
        pixels, mask, boxes = (v2.pad(each, bars) for each in values)
        torch.testing.assert_close(image, pixels.as_subclass(torch.Tensor), rtol=0, atol=1)
        assert torch.equal(target["mask"], mask.as_subclass(torch.Tensor))
        assert torch.equal(target["boxes"], boxes.as_subclass(torch.Tensor))


def test_bars_of_another_colour_are_as_wide(coco: Coco) -> None:
    black = made(coco, Resize(None, max_size=SIDE), CenterCrop(SIDE))
    grey = made(coco, Resize(None, max_size=SIDE), Pad(SIDE // 2, (114, 114, 114)), CenterCrop(SIDE))
    free = made(coco, Resize(None, max_size=SIDE), RandomCrop(SIDE, pad_if_needed=True, fill=(114, 114, 114)))
    for size, (image, _), (other, _), (third, target) in zip(SIZES, black, grey, free, strict=True):
        top, left, height, width = placed(size)
        content = image[:, top : top + height, left : left + width]
        for each in (other, third):
            places = (each != 114).any(0).nonzero()
            top, left = (int(side) for side in places.min(0).values)
            assert torch.equal(each[:, top : top + height, left : left + width], content)
            assert int((each != 114).sum()) == int((content != 114).sum())
        width_of = target["boxes"][0, 2] - target["boxes"][0, 0]
        assert float(width_of) == pytest.approx(0.7 * width, abs=1e-4)


def test_boxes_are_mapped_back_as_documented(coco: Coco) -> None:
    code = re.search(r"^def original.*?\n\n", (DOCS / "migrating.md").read_text(), re.DOTALL | re.MULTILINE)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[0], names)
    samples = made(coco, Resize(None, max_size=SIDE), CenterCrop(SIDE))
    for (height, width), (_, target) in zip(SIZES, samples, strict=True):
        assert target["orig_size"].tolist() == [height, width]
        found = names["original"](target["boxes"], target["orig_size"], SIDE)[0]
        wanted = torch.tensor([0.2 * width, 0.3 * height, 0.9 * width, 0.8 * height])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-3)
