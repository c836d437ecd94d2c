"""Masks and boxes through a real daemon: the same as inline, with lanes, views, fields, a device, and replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from prepclient import (
    BadSampleError,
    Coco,
    ColorJitter,
    ImageFolder,
    InvalidSpec,
    Joining,
    Packed,
    PadBoxes,
    PrepClient,
    RandomHorizontalFlip,
    RandomResizedCrop,
    SanitizeBoxes,
    Voc,
)
from prepserver.pipeline.ops import Op
from prepserver.pipeline.source import SourceSpec
from tests.support.complete import needs_kernels
from tests.support.detection import annotation, coco_tree, voc_tree
from tests.support.device_client import DeviceClient
from tests.support.forked import cli
from tests.support.server import Server

pytestmark = pytest.mark.integration

COUNT, BAD = 24, 7
MASK_OPS: list[Op] = [RandomResizedCrop(16), RandomHorizontalFlip(), ColorJitter(0.2)]
BOX_OPS: list[Op] = [RandomResizedCrop(16), RandomHorizontalFlip(), SanitizeBoxes(), PadBoxes(4)]
SPEC: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 5}
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """One mask is no image."""
    root = tmp_path_factory.mktemp("masked")
    rng = np.random.default_rng(1)
    for number in range(COUNT):
        size = (40 + 8 * (number % 3), 56)
        for folder, kind, shape in (("images", "jpg", (*size, 3)), ("masks", "png", size)):
            path = root / folder / ("cats" if number < COUNT // 2 else "dogs") / f"{number:03}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Picture.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    (root / "masks" / "dogs" / "020.png").write_bytes(b"no image")
    return ImageFolder(root / "images", masks=root / "masks")


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Coco:
    """One image has an annotation that cannot be used."""
    spec = coco_tree(tmp_path_factory.mktemp("coco") / "data", COUNT)
    path = Path(spec.annotations)
    content = json.loads(path.read_text())
    content["annotations"].append(annotation(999, spec, BAD, (0, 0, float("nan"), 1)))
    path.write_text(json.dumps(content))
    return Coco(spec.root, spec.annotations, keypoints=17)


def epoch(source: SourceSpec, make: Callable[..., PrepClient] = PrepClient, **more: Any) -> list[Any]:
    """Batches as tensors of each column by name, those of views one after the other."""
    ops, found = BOX_OPS if "boxes" in source.columns else MASK_OPS, []
    with make(source, ops, **{**SPEC, "on_error": "mask", "fields": "dict", **more}) as client:
        for batch in client:
            if isinstance(client, DeviceClient):
                client.fake.finish_all()
            parts = {name: value if isinstance(value, tuple) else (value,) for name, value in batch.items()}
            found.append({name: [part.clone() for part in each] for name, each in parts.items()})
    return found


def assert_equal(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(a, b) for name in one for a, b in zip(one[name], other[name], strict=True))


def check_devices(server: Server, source: SourceSpec, shapes: Shapes) -> list[Any]:
    """The epoch of inline, which has these shapes and one bad sample, comes from the daemon on any device."""
    expected = epoch(source, inline=True)
    usual: Shapes = {
        "image": ((8, 3, 16, 16), torch.uint8), "index": ((8,), torch.int64), "valid": ((8,), torch.bool),
    }  # fmt: skip
    assert {name: (tuple(part[0].shape), part[0].dtype) for name, part in expected[0].items()} == usual | shapes
    assert sum(int((~batch["valid"][0]).sum()) for batch in expected) == 1
    for make in (PrepClient, DeviceClient):
        assert_equal(epoch(source, make, runtime_dir=server.runtime_dir), expected)
    return expected


def test_masks_are_the_same_as_inline_on_any_device(server: Server, masked: ImageFolder) -> None:
    shapes: Shapes = {"mask": ((8, 16, 16), torch.uint8), "label": ((8,), torch.int64)}
    expected = check_devices(server, masked, shapes)
    fields: dict[str, Any] = {"fields": ("label", "mask"), "on_error": "skip", "runtime_dir": server.runtime_dir}
    with PrepClient(masked, MASK_OPS, **SPEC, **fields) as client:
        for (labels, masks), batch in zip(client, expected, strict=True):
            assert torch.equal(labels, batch["label"][0])
            assert torch.equal(masks, batch["mask"][0])


def test_boxes_are_the_same_as_inline_on_any_device(server: Server, boxed: Coco) -> None:
    shapes: Shapes = {
        "boxes": ((8, 4, 4), torch.float32), "labels": ((8, 4), torch.int64), "count": ((8,), torch.int64),
        "keypoints": ((8, 4, 17, 3), torch.float32), "image_id": ((8,), torch.int64),
    }  # fmt: skip
    assert any(batch["count"][0].any() for batch in check_devices(server, boxed, shapes))


@pytest.mark.parametrize("column", ["mask", "boxes"])
def test_each_view_has_its_own_and_lanes_share_the_decode(
    server: Server, masked: ImageFolder, boxed: Coco, column: str
) -> None:
    source: SourceSpec = masked if column == "mask" else boxed
    expected = epoch(source, inline=True, views=2)
    views = {name: len(parts) for name, parts in expected[0].items()}
    assert {name for name, count in views.items() if count == 2} >= {"image", column}
    assert {name for name, count in views.items() if count == 1} >= {"index", "valid"}
    assert not torch.equal(*expected[0][column])
    other = [RandomResizedCrop(8), *([PadBoxes(2)] if column == "boxes" else [])]
    spec = {**SPEC, "runtime_dir": server.runtime_dir, "on_error": "skip"}
    with PrepClient(source, other, fields=("image", column), **spec) as client:
        images, values = next(iter(client))
        assert (images.shape[2:], values.shape[1:]) == ((8, 8), (8, 8) if column == "mask" else (2, 4))
        there = epoch(source, joining=Joining(start="first"), views=2, runtime_dir=server.runtime_dir)
        assert_equal(there, expected)


def test_normalising_changes_images_and_leaves_masks(server: Server, masked: ImageFolder) -> None:
    plain = epoch(masked, runtime_dir=server.runtime_dir)
    finished = epoch(masked, runtime_dir=server.runtime_dir, normalize=([0.5] * 3, [0.25] * 3))
    for before, after in zip(plain, finished, strict=True):
        assert after["image"][0].dtype == torch.float32
        assert torch.equal(before["mask"][0], after["mask"][0])


def test_a_list_of_targets_is_what_torchvisions_models_take(server: Server, tmp_path: Path) -> None:
    source = Voc(voc_tree(tmp_path / "voc", 9).root, "train", difficult=True)
    with PrepClient(source, BOX_OPS, inline=True, **SPEC) as client:
        padded = list(client)
    with PrepClient(source, BOX_OPS, collate="list", runtime_dir=server.runtime_dir, **SPEC) as client:
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
    fields = ("labels", "image", "index")
    with PrepClient(source, BOX_OPS, collate="list", fields=fields, inline=True, **SPEC) as client:
        images, targets = next(iter(client))
        assert list(targets[0]) == ["labels", "index"]
        assert targets[0]["index"].shape == ()
    for wrong in ({"views": 2}, {"fields": ("boxes",)}):
        with pytest.raises(InvalidSpec, match="collate = 'list': needs one image"):
            PrepClient(source, BOX_OPS, collate="list", **SPEC, **wrong)
    with pytest.raises(InvalidSpec, match=r"add PadBoxes\(n\)"):
        PrepClient(source, BOX_OPS[:-1], **SPEC)


def test_a_bad_annotation_is_named_and_every_row_replayed(server: Server, boxed: Coco, tmp_path: Path) -> None:
    said = f"{BAD}.jpg.*the bbox of annotation 999 is .* and must be 4 numbers"
    client = PrepClient(boxed, BOX_OPS, batch_size=COUNT, runtime_dir=server.runtime_dir)
    with client, pytest.raises(BadSampleError, match=said):
        next(iter(client))
    spec = {**SPEC, "runtime_dir": server.runtime_dir, "fields": "dict", "on_error": "skip"}
    with PrepClient(boxed, BOX_OPS, job="boxes", **spec) as client:
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
    assert "boxes is not a picture; write it to a .npy file" in done.stderr


def test_replay_makes_the_very_mask_again(server: Server, masked: ImageFolder, tmp_path: Path) -> None:
    spec = {**SPEC, "runtime_dir": server.runtime_dir, "on_error": "skip"}
    with PrepClient(masked, MASK_OPS, job="masked", **spec) as client:
        batches = [masks.clone() for _, masks, _ in client]
    out = tmp_path / "mask.png"
    place = ["--job", "masked", "--batch", "2", "--row", "3", "-o", str(out), "--runtime-dir", str(server.runtime_dir)]
    done = cli("replay", *place, "--field", "mask")
    assert done.returncode == 0, done.stderr
    assert (np.asarray(Picture.open(out)) == batches[2][3].numpy()).all()
    wrong = cli("replay", *place, "--field", "boxes")
    assert wrong.returncode == 2
    assert "a row has the columns image, mask, label" in wrong.stderr


@needs_kernels
def test_packed_masks_are_the_very_masks(server: Server, masked: ImageFolder, tmp_path: Path) -> None:
    """Also where the image is decoded only around the crop."""
    out = tmp_path / "packed"
    done = cli("pack", masked.root, str(out), "--masks", str(masked.masks), "--quiet")
    assert f'use it as Packed("{out}", masks=True)' in done.stdout, done.stderr
    for views in (1, 2):
        served = epoch(Packed(out, masks=True), runtime_dir=server.runtime_dir, views=views)
        assert_equal(served, epoch(masked, inline=True, views=views))
    assert_equal(epoch(Packed(out), inline=True), epoch(ImageFolder(masked.root), inline=True))
