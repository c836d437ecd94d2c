"""Where images differ from those of torchvision's ImageFolder: exactly as docs/migrating.md lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from prepclient import CenterCrop, Decode, ImageFolder, PrepClient, Resize
from prepserver.pipeline.ops import Op

MIGRATING = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()


def listed(word: str) -> bool:
    """Whether the document's exceptions name it."""
    return word in MIGRATING.split("Images differ from torchvision's")[1].split("\n## ")[0]


def made(root: Path, *ops: Op) -> npt.NDArray[np.int64]:
    with PrepClient(ImageFolder(root), list(ops), batch_size=16, inline=True) as client:
        ((images, _),) = list(client)
    return np.asarray(images.permute(0, 2, 3, 1).numpy(), np.int64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    return tmp_path


def colours(height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(1).integers(0, 256, (height // 32, width // 32, 3), np.uint8)
    return Image.fromarray(np.kron(pixels, np.ones((32, 32, 1), np.uint8)))


def test_gifs_are_samples(folder: Path) -> None:
    colours(64, 64).save(folder / "a" / "x.gif")
    colours(64, 64).save(folder / "a" / "y.png")
    assert len(made(folder, CenterCrop(64))) == 2
    assert listed("`.gif`")


def test_photos_are_turned_as_exif_says_unless_told_otherwise(folder: Path) -> None:
    tags = Image.Exif()
    tags[0x0112] = 6
    colours(64, 96).save(folder / "a" / "x.png", exif=tags)
    stored = np.asarray(colours(64, 96))
    assert np.array_equal(made(folder, CenterCrop((96, 64)))[0], np.rot90(stored, -1))
    assert np.array_equal(made(folder, Decode(exif_orientation=False), CenterCrop((64, 96)))[0], stored)
    assert listed("`Decode(exif_orientation=False)`")


def test_large_jpegs_are_decoded_at_a_smaller_scale(folder: Path) -> None:
    colours(512, 512).save(folder / "a" / "x.jpg")
    with Image.open(folder / "a" / "x.jpg") as image:
        whole = np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR)).astype(np.int64)
    difference = np.abs(made(folder, Resize((64, 64)))[0] - whole)
    assert 0 < difference.mean() < 2
    assert listed("decoded at a smaller scale")


def test_16_bit_grey_keeps_its_high_byte(folder: Path) -> None:
    grey = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    Image.fromarray(grey).save(folder / "a" / "x.png")
    assert np.array_equal(made(folder, CenterCrop(64))[0, :, :, 0], grey >> 8)
    assert listed("16-bit grey")
