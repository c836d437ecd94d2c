"""The plug-ins that docs/migrating.md shows: pairs of images cropped alike, and a crop that says where it is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prepclient import Csv, Only, PluginOp, PrepClient, RandomCrop, kinds

PAGE = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()
IMPORTS = "import io\n\nimport numpy as np\nfrom PIL import Image, ImageOps\n\n\n"


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with the functions of the page."""
    code = re.findall(r"^def (?:pair|cropped)\(.*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert len(code) == 2
    name = f"shown_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(IMPORTS + "\n".join(code))
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Pairs of noise, each pixel of the smaller one a square of 4 x 4 of the larger."""
    for number in range(12):
        low = np.random.default_rng(number).integers(0, 256, (20 + number, 25, 3), np.uint8)
        Image.fromarray(low).save(tmp_path / f"{number}_low.png")
        Image.fromarray(low.repeat(4, 0).repeat(4, 1)).save(tmp_path / f"{number}_high.png")
    lines = [f"{number}_low.png,{number}_high.png\n" for number in range(12)]
    (tmp_path / "pairs.csv").write_text("low,high\n" + "".join(lines))
    return tmp_path / "pairs.csv"


def test_pairs_are_cropped_and_flipped_alike(table: Path, shown: str) -> None:
    made = {"low": kinds.Array((16, 16, 3), "uint8"), "high": kinds.Array((64, 64, 3), "uint8")}
    op = PluginOp("pair", column=["low", "high"], returns=made, side=16)
    source, seen = Csv(table, {"low": kinds.Bytes(), "high": kinds.Bytes()}), []
    with PrepClient(source, [op], batch_size=4, shuffle=True, inline=True, plugins=f"{shown}:pair") as client:
        for _ in range(2):
            for low, high in client:
                assert (low.repeat_interleave(4, 1).repeat_interleave(4, 2) == high).all()
                seen += [bytes(each.numpy()) for each in low]
    assert len(set(seen)) > 18


def test_only_crops_each_of_a_pair_by_itself(table: Path) -> None:
    ops = [Only("low", RandomCrop(16)), Only("high", RandomCrop(64))]
    source = Csv(table, {"low": kinds.Image(), "high": kinds.Image()})
    with PrepClient(source, ops, batch_size=12, inline=True) as client:
        ((low, high),) = client
    assert not (low.repeat_interleave(4, 2).repeat_interleave(4, 3) == high).all()


def test_a_crop_says_where_it_is(table: Path, shown: str) -> None:
    made = {"pixels": kinds.Array((16, 16, 3), "uint8"), "crop": kinds.Array((4,), "int64")}
    op = PluginOp("cropped", column=["image"], returns=made, height=16, width=16)
    source = Csv(table, {"image": kinds.Bytes()}, names={"image": "low"})
    with PrepClient(source, [op], batch_size=12, fields="dict", inline=True, plugins=f"{shown}:cropped") as client:
        (batch,) = client
    places = set()
    for number, (pixels, crop) in enumerate(zip(batch["pixels"], batch["crop"].tolist(), strict=True)):
        height, width, top, left = crop
        assert (height, width) == (20 + number, 25)
        assert pixels.shape == (16, 16, 3)
        places.add((top, left))
    assert len(places) > 4
