"""Images of 13 bands of 16 bits, with masks, through a real daemon: files, packed, and normalized in the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from prepclient import (
    BadSampleError,
    CenterCrop,
    Csv,
    Packed,
    PrepClient,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
)
from prepserver.pipeline import kinds
from tests.support.forked import cli
from tests.support.logged import await_logged
from tests.support.server import Server

pytestmark = pytest.mark.integration

COUNT = 12
COLUMNS = {"image": kinds.Image(channels=13, dtype="uint16"), "mask": kinds.Mask(), "label": kinds.Label()}
SPEC: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "fields": "dict"}


def pixels(index: int) -> np.ndarray[Any, Any]:
    made = np.random.default_rng(index).integers(0, 65536, (40 + index, 64, 13), np.uint16)
    made[..., 0] = np.arange(64) // 4 + 7  # the mask's numbers
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bands")
    for index in range(COUNT):
        image = pixels(index)
        np.save(made / f"{index}.npy", image)
        Image.fromarray(image[..., 0].astype(np.uint8)).save(made / f"{index}.png")
    lines = [f"{index}.npy,{index}.png,{index}" for index in range(COUNT)]
    (made / "chips.csv").write_text("\n".join(["image,mask,label", *lines]))
    return made


def test_bands_reach_the_loop_as_the_files_have_them(server: Server, folder: Path) -> None:
    source, where = Csv(folder / "chips.csv", root=folder, columns=COLUMNS), server.runtime_dir
    with PrepClient(source, [CenterCrop(32)], runtime_dir=where, job="bands", **SPEC) as client:
        rows = {int(n): image for batch in client for n, image in zip(batch["label"], batch["image"], strict=True)}
    assert sorted(rows) == list(range(COUNT))
    for index, row in rows.items():
        top = round((8 + index) / 2)
        assert (row.numpy() == pixels(index)[top : top + 32, 16:48].transpose(2, 0, 1)).all()
    await_logged(server)
    out = folder / "row.npy"
    done = cli("replay", "--job", "bands", "--batch", "1", "--row", "2", "--runtime-dir", str(where), "-o", str(out))
    assert done.returncode == 0, done.stderr
    replayed = np.load(out).transpose(2, 0, 1)
    assert any((replayed == row.numpy()).all() for row in rows.values())
    refused = cli(
        "replay", "--job", "bands", "--batch", "1", "--row", "2", "--runtime-dir", str(where), "-o", f"{out}.png"
    )
    assert refused.returncode == 2
    assert "image is not a picture" in refused.stderr


def test_a_packed_copy_and_a_normalized_batch_are_the_same_rows(server: Server, folder: Path, tmp_path: Path) -> None:
    source, where = Csv(folder / "chips.csv", root=folder, columns=COLUMNS), server.runtime_dir
    columns = "{'image': kinds.Image(channels=13, dtype='uint16'), 'mask': kinds.Mask(), 'label': kinds.Label()}"
    packed = cli("pack", f"Csv({str(folder / 'chips.csv')!r}, root={str(folder)!r}, columns={columns})", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    ops = [RandomCrop(32), RandomHorizontalFlip()]
    with PrepClient(source, ops, runtime_dir=where, **SPEC) as client:
        raw = list(client)
    for batch in raw:
        assert (batch["image"][:, 0].to(torch.int64) == batch["mask"]).all()
    mean, std = np.linspace(100, 900, 13), np.linspace(1, 3, 13)
    spec = SPEC | {"normalize": (mean.tolist(), std.tolist())}
    with PrepClient(Packed(tmp_path, columns=COLUMNS), ops, runtime_dir=where, **spec) as client:
        for batch, plain in zip(client, raw, strict=True):
            due = (plain["image"].double() - torch.from_numpy(mean)[:, None, None]) / torch.from_numpy(std)[
                :, None, None
            ]
            torch.testing.assert_close(batch["image"], due.float(), rtol=1e-5, atol=1e-3)
            assert (batch["mask"] == plain["mask"]).all()


def test_bands_that_are_others_than_declared_are_bad_samples(server: Server, folder: Path) -> None:
    columns = COLUMNS | {"image": kinds.Image(channels=12, dtype="uint16")}
    source = Csv(folder / "chips.csv", root=folder, columns=columns)
    ops = [RandomResizedCrop(32)]
    says = r"\(H, W, 12\) of dtype uint16, and the .npy file has the shape"
    with (
        PrepClient(source, ops, runtime_dir=server.runtime_dir, on_error="raise", **SPEC) as client,
        pytest.raises(BadSampleError, match=says),
    ):
        next(iter(client))
