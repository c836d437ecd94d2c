"""Boxes through a real daemon: the same as inline, with lanes, views, fields, a device, bad samples and replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepclient import (
    BadSampleError,
    Coco,
    InvalidSpec,
    Joining,
    PadBoxes,
    PrepClient,
    RandomHorizontalFlip,
    RandomResizedCrop,
    SanitizeBoxes,
    Voc,
)
from prepserver.pipeline.ops import Op
from prepserver.pipeline.source import SourceSpec
from tests.support.detection import annotation, coco_tree, voc_tree
from tests.support.device_client import DeviceClient
from tests.support.forked import cli
from tests.support.server import Server

pytestmark = pytest.mark.integration

COUNT, BAD = 24, 7
OPS: list[Op] = [RandomResizedCrop(16), RandomHorizontalFlip(), SanitizeBoxes(), PadBoxes(4)]
SPEC: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 5}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Coco:
    """One image has an annotation that cannot be used."""
    spec = coco_tree(tmp_path_factory.mktemp("coco") / "data", COUNT)
    path = Path(spec.annotations)
    content = json.loads(path.read_text())
    content["annotations"].append(annotation(999, spec, BAD, (0, 0, float("nan"), 1)))
    path.write_text(json.dumps(content))
    return Coco(spec.root, spec.annotations, keypoints=17)


def epoch(make: Callable[..., PrepClient], source: SourceSpec, **more: Any) -> list[Any]:
    """Batches as tensors of each column by name, those of views one after the other."""
    found = []
    with make(source, OPS, **{**SPEC, "on_error": "mask", "fields": "dict", **more}) as client:
        for batch in client:
            if isinstance(client, DeviceClient):
                client.fake.finish_all()
            parts = {name: value if isinstance(value, tuple) else (value,) for name, value in batch.items()}
            found.append({name: [part.clone() for part in each] for name, each in parts.items()})
    return found


def assert_equal(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(a, b) for name in one for a, b in zip(one[name], other[name], strict=True))


def test_a_batch_is_the_same_as_inline_on_any_device(server: Server, source: Coco) -> None:
    expected = epoch(PrepClient, source, inline=True)
    shapes = {name: (tuple(part[0].shape), part[0].dtype) for name, part in expected[0].items()}
    assert shapes == {
        "image": ((8, 3, 16, 16), torch.uint8),
        "boxes": ((8, 4, 4), torch.float32),
        "labels": ((8, 4), torch.int64),
        "keypoints": ((8, 4, 17, 3), torch.float32),
        "image_id": ((8,), torch.int64),
        "index": ((8,), torch.int64),
        "count": ((8,), torch.int64),
        "valid": ((8,), torch.bool),
    }
    assert sum(int((~batch["valid"][0]).sum()) for batch in expected) == 1
    assert any(batch["count"][0].any() for batch in expected)
    served = {"runtime_dir": server.runtime_dir}
    assert_equal(epoch(PrepClient, source, **served), expected)
    assert_equal(epoch(DeviceClient, source, **served), expected)


def test_each_view_has_its_own_boxes_and_lanes_share_the_decode(server: Server, source: Coco) -> None:
    expected = epoch(PrepClient, source, inline=True, views=2)
    assert [len(expected[0][name]) for name in ("image", "boxes", "labels", "count", "image_id")] == [2, 2, 2, 2, 1]
    assert not torch.equal(*expected[0]["boxes"])
    other = [RandomResizedCrop(8), PadBoxes(2)]
    with PrepClient(source, other, runtime_dir=server.runtime_dir, on_error="skip", **SPEC) as client:
        images, boxes, _labels, _points, _numbers, counts = next(iter(client))
        assert (images.shape[2:], boxes.shape[1:], counts.shape) == ((8, 8), (2, 4), (8,))
        there = epoch(PrepClient, source, joining=Joining(start="first"), views=2, runtime_dir=server.runtime_dir)
        assert_equal(there, expected)


def test_a_list_of_targets_is_what_torchvisions_models_take(server: Server, tmp_path: Path) -> None:
    source = voc_tree(tmp_path / "voc", 9)
    source = Voc(source.root, "train", difficult=True)
    with PrepClient(source, OPS, inline=True, **SPEC) as client:
        padded = list(client)
    with PrepClient(source, OPS, collate="list", runtime_dir=server.runtime_dir, **SPEC) as client:
        lists = list(client)
        assert client.dataset.classes[14] == "person"
        assert client.num_classes == 20
    seen = 0
    for (images, boxes, labels, difficult, counts), (each_image, targets) in zip(padded, lists, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(each_image, images, strict=True))
        for row, target in enumerate(targets):
            n = int(counts[row])
            assert target.keys() == {"boxes", "labels", "difficult"}
            assert torch.equal(target["boxes"], boxes[row, :n])
            assert torch.equal(target["labels"], labels[row, :n])
            assert torch.equal(target["difficult"], difficult[row, :n])
            assert (target["labels"] >= 0).all()
            seen += n
    assert seen > 0
    with PrepClient(source, OPS, collate="list", fields=("labels", "image", "index"), inline=True, **SPEC) as client:
        images, targets = next(iter(client))
        assert list(targets[0]) == ["labels", "index"]
        assert targets[0]["index"].shape == ()
    for wrong in ({"views": 2}, {"fields": ("boxes",)}):
        with pytest.raises(InvalidSpec, match="collate = 'list': needs one image"):
            PrepClient(source, OPS, collate="list", **SPEC, **wrong)
    with pytest.raises(InvalidSpec, match=r"add PadBoxes\(n\)"):
        PrepClient(source, OPS[:-1], **SPEC)


def test_a_bad_annotation_is_named_and_every_row_replayed(server: Server, source: Coco, tmp_path: Path) -> None:
    said = f"{BAD}.jpg.*annotation 999 has no bbox of 4 numbers"
    client = PrepClient(source, OPS, batch_size=COUNT, runtime_dir=server.runtime_dir)
    with client, pytest.raises(BadSampleError, match=said):
        next(iter(client))
    with PrepClient(
        source, OPS, job="boxes", runtime_dir=server.runtime_dir, fields="dict", on_error="skip", **SPEC
    ) as client:
        batch = next(iter(client))
        names = {name: batch[name][2].numpy() for name in ("boxes", "labels")}
    where = ("--runtime-dir", str(server.runtime_dir))
    place = ("--job", "boxes", "--epoch", "0", "--batch", "0", "--row", "2", *where)
    for name, wanted in names.items():
        done = cli("replay", *place, "--field", name, "-o", str(tmp_path / "row.npy"))
        assert done.returncode == 0, done.stderr
        assert np.array_equal(np.load(tmp_path / "row.npy"), wanted)
    assert f"image_id {batch['image_id'][2]}\ncount {batch['count'][2]}\n" in done.stdout
    done = cli("replay", *place, "--field", "boxes", "-o", str(tmp_path / "row.png"))
    assert "boxes is no picture: write it to a .npy file" in done.stderr
