"""Masks through a real daemon: the same as inline, with views, lanes, fields, a device and replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from prepclient import ColorJitter, ImageFolder, Joining, Packed, PrepClient, RandomHorizontalFlip, RandomResizedCrop
from prepserver.pipeline.source import SourceSpec
from tests.support.complete import needs_jpegtran
from tests.support.device_client import DeviceClient
from tests.support.forked import cli
from tests.support.server import Server

pytestmark = pytest.mark.integration

COUNT = 40
OPS = [RandomResizedCrop(16), RandomHorizontalFlip(), ColorJitter(0.2)]
SPEC: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 5}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    root = tmp_path_factory.mktemp("masked")
    rng = np.random.default_rng(1)
    for number in range(COUNT):
        size = (40 + 8 * (number % 3), 56)
        for folder, kind, shape in (("images", "jpg", (*size, 3)), ("masks", "png", size)):
            path = root / folder / ("cats" if number < COUNT // 2 else "dogs") / f"{number:03}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Picture.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    (root / "masks" / "dogs" / "030.png").write_bytes(b"no image")
    return ImageFolder(root / "images", masks=root / "masks")


def epoch(make: Callable[..., PrepClient], source: SourceSpec, **more: Any) -> list[Any]:
    with make(source, OPS, **{**SPEC, "on_error": "mask", **more}) as client:
        batches = []
        for batch in client:
            if isinstance(client, DeviceClient):
                client.fake.finish_all()
            batches.append(batch)
        return [[part.clone() if torch.is_tensor(part) else part for part in batch] for batch in batches]


def assert_equal(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for got, want in zip(one, other, strict=True):
            for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True):
                assert torch.equal(a, b)


def test_a_batch_is_the_columns_in_order_and_the_same_as_inline(server: Server, source: ImageFolder) -> None:
    expected = epoch(PrepClient, source, inline=True)
    images, masks, labels, valid = expected[0]
    assert (images.shape, masks.shape, labels.shape) == ((8, 3, 16, 16), (8, 16, 16), (8,))
    assert (masks.dtype, valid.dtype) == (torch.uint8, torch.bool)
    assert sum(int((~batch[3]).sum()) for batch in expected) == 1  # the mask that is no image
    served = {"runtime_dir": server.runtime_dir}
    assert_equal(epoch(PrepClient, source, **served), expected)
    assert_equal(epoch(DeviceClient, source, **served), expected)
    assert_equal(epoch(PrepClient, source, fields=("label", "mask"), **served), [[b[2], b[1]] for b in expected])


def test_each_view_has_its_own_and_lanes_share_the_decode(server: Server, source: ImageFolder) -> None:
    served = {"runtime_dir": server.runtime_dir, "views": 2}
    expected = epoch(PrepClient, source, inline=True, views=2)
    assert [len(part) for part in expected[0][:2]] == [2, 2]
    assert not torch.equal(*expected[0][1])
    with PrepClient(source, [RandomResizedCrop(8)], runtime_dir=server.runtime_dir, on_error="skip", **SPEC) as other:
        next(iter(other))
        assert_equal(epoch(PrepClient, source, joining=Joining(start="first"), **served), expected)


def test_normalising_changes_images_and_leaves_masks(server: Server, source: ImageFolder) -> None:
    plain = epoch(PrepClient, source, runtime_dir=server.runtime_dir)
    finished = epoch(PrepClient, source, runtime_dir=server.runtime_dir, normalize=([0.5] * 3, [0.25] * 3))
    for before, after in zip(plain, finished, strict=True):
        assert after[0].dtype == torch.float32
        assert torch.equal(before[1], after[1])


def test_replay_makes_the_very_mask_again(server: Server, source: ImageFolder, tmp_path: Path) -> None:
    with PrepClient(source, OPS, job="masked", runtime_dir=server.runtime_dir, on_error="skip", **SPEC) as client:
        batches = [masks.clone() for _, masks, _ in client]
    out = tmp_path / "mask.png"
    place = ["--job", "masked", "--batch", "2", "--row", "3", "-o", str(out), "--runtime-dir", str(server.runtime_dir)]
    done = cli("replay", *place, "--field", "mask")
    assert done.returncode == 0, done.stderr
    assert (np.asarray(Picture.open(out)) == batches[2][3].numpy()).all()
    wrong = cli("replay", *place, "--field", "boxes")
    assert wrong.returncode == 2
    assert "a row has image, mask, label" in wrong.stderr


@needs_jpegtran
def test_packed_masks_are_the_very_masks(server: Server, source: ImageFolder, tmp_path: Path) -> None:
    """Also where the image is decoded only around the crop."""
    out = tmp_path / "packed"
    done = cli("pack", source.root, str(out), "--masks", str(source.masks), "--quiet")
    assert f'use it as Packed("{out}", masks=True)' in done.stdout, done.stderr
    packed = Packed(out, masks=True)
    expected = epoch(PrepClient, source, inline=True)
    assert_equal(epoch(PrepClient, packed, runtime_dir=server.runtime_dir), expected)
    assert_equal(
        epoch(PrepClient, packed, runtime_dir=server.runtime_dir, views=2),
        epoch(PrepClient, source, inline=True, views=2),
    )
    assert_equal(
        epoch(PrepClient, Packed(out), inline=True, on_error="skip")[:1],
        epoch(PrepClient, ImageFolder(source.root), inline=True, on_error="skip")[:1],
    )
