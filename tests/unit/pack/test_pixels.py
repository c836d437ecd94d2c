"""``prepserver pack --form pixels``: rows made from stored pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prepclient import CenterCrop, ImageFolder, Packed, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from prepserver.pack import PackError
from prepserver.pack.report import Report
from prepserver.pack.run import Options, Summary, pack
from prepserver.pack.transcode import Transcoder
from prepserver.pipeline.sources import SourceSpec
from prepserver.source import SampleError, build_index, open_source
from tests.support.clients import inline_rows
from tests.support.detection import coco_tree
from tests.support.photos import jpeg, pixels, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """Photos of several sizes, one of them turned, one a PNG, one smaller than the side, one damaged, one no image."""
    root = tmp_path_factory.mktemp("data") / "a"
    root.mkdir()
    for index in range(6):
        (root / f"{index}.jpg").write_bytes(jpeg(70 + 11 * index, 131 - 17 * index, ("444", "420", "422")[index % 3]))
    (root / "6.jpg").write_bytes(jpeg(40, 55, "420"))
    (root / "7.jpg").write_bytes(saved(pixels(90, 70, 7), "JPEG", exif=turned()))
    (root / "8.png").write_bytes(saved(pixels(81, 99, 8), "PNG"))
    return ImageFolder(root.parent)


def turned() -> Any:
    from PIL import Image

    tags = Image.Exif()
    tags[0x0112] = 6
    return tags


def do(spec: SourceSpec, out: Path, pixels: str = "yuv420", side: int | None = 64, **more: Any) -> Summary:
    return pack(spec, out, Options(Transcoder(False, pixels=pixels, side=side), 1 << 20, **more), Report())


def test_rgb_at_a_side_is_what_resize_would_make(folder: ImageFolder, tmp_path: Path) -> None:
    """Also of images that are smaller, turned, or no JPEGs."""
    made = do(folder, tmp_path / "out", "rgb", workers=2)
    assert (made.samples, made.pixels, made.kept, made.skipped) == (9, 9, 0, 0)
    assert made.settings == {"form": "pixels", "pixels": "rgb", "side": 64}
    for ops in ([Resize(64), RandomCrop(48), RandomHorizontalFlip()], [Resize(64), CenterCrop(40)]):
        arguments: dict[str, Any] = {"ops": ops, "batch_size": 3, "shuffle": True}
        assert inline_rows(Packed(tmp_path / "out"), **arguments) == inline_rows(folder, **arguments)
    again = do(folder, tmp_path / "out", "rgb")
    assert again.already
    with pytest.raises(PackError, match='pixels was "rgb", is "yuv420"'):
        do(folder, tmp_path / "out")


def test_without_a_side_crops_are_those_of_the_source(folder: ImageFolder, tmp_path: Path) -> None:
    do(folder, tmp_path / "out", "rgb", None)
    arguments: dict[str, Any] = {"ops": [RandomResizedCrop(32), RandomHorizontalFlip()], "batch_size": 3}
    assert inline_rows(Packed(tmp_path / "out"), **arguments) == inline_rows(folder, **arguments)


def test_yuv_takes_half_and_gives_nearly_the_same(folder: ImageFolder, tmp_path: Path) -> None:
    whole, half = (do(folder, tmp_path / form, form) for form in ("rgb", "yuv420"))
    assert half.image_bytes < 0.51 * whole.image_bytes
    arguments: dict[str, Any] = {"batch_size": 9, "ops": [RandomResizedCrop(32)], "seed": 3}
    ours, theirs = (inline_rows(Packed(tmp_path / form), **arguments) for form in ("yuv420", "rgb"))
    assert ours != theirs
    assert [index for index, _ in ours] == [index for index, _ in theirs]


def test_a_run_that_was_killed_goes_on_where_it_stopped(folder: ImageFolder, tmp_path: Path) -> None:
    do(folder, tmp_path / "out")
    (index,), (shard,) = (tmp_path / "out").glob("index-*"), (tmp_path / "out").glob("shard-*")
    whole = shard.read_bytes()
    index.unlink()
    shard.unlink()
    (tmp_path / "out" / "unfinished.shard").write_bytes(whole[: len(whole) // 2])
    again = do(folder, tmp_path / "out")
    assert 0 < again.this_run["samples"] < again.pixels == 9
    assert shard.read_bytes() == whole


def test_what_cannot_be_decoded_is_kept_and_named(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a/b/0.jpg").write_bytes(b"\xff\xd8 no image")
    (tmp_path / "a/b/1.jpg").write_bytes(jpeg(80, 90))
    made = do(ImageFolder(tmp_path / "a"), tmp_path / "out")
    assert (made.pixels, made.kept) == (1, 1)


def test_a_flipped_bit_of_a_pixel_is_a_bad_sample(folder: ImageFolder, tmp_path: Path) -> None:
    do(folder, tmp_path / "out")
    spec = Packed(tmp_path / "out")
    source = open_source(spec, build_index(spec, tmp_path / "cache").path)
    source.read(2)
    (shard,) = (tmp_path / "out").glob("shard-*")
    data = bytearray(shard.read_bytes())
    offset, length = source.entry(2)[3:5]  # type: ignore[attr-defined]
    data[offset + length - 9] ^= 4
    shard.write_bytes(data)
    with pytest.raises(SampleError, match="the checksum of its image is wrong"):
        open_source(spec, build_index(spec, tmp_path / "cache").path).read(2)


def test_boxes_are_packed_with_pixels_of_their_own_size_only(tmp_path: Path) -> None:
    source = coco_tree(tmp_path / "coco", 4)
    with pytest.raises(PackError, match="--side shrinks images but not boxes, labels: leave out one of the two"):
        do(source, tmp_path / "out")
    assert do(source, tmp_path / "out", side=None).pixels == 4
