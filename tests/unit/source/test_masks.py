"""Masks beside images: found by name or named by a list, read with their image, checked like it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prepserver.pipeline.sources import FileList, ImageFolder
from prepserver.source import OutsideRootsError, Roots, SampleError, SourceError, build_index, open_source, progress
from tests.support.waiting import PATIENCE_S


def files(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    files(tmp_path / "masks", "cat/1.png", "dog/deep/2.png")
    return ImageFolder(files(tmp_path / "data", "cat/1.jpg", "dog/deep/2.JPEG", "dog/3.jpg"), masks=tmp_path / "masks")


def test_a_folders_masks_have_the_names_of_its_images(folder: ImageFolder, tmp_path: Path) -> None:
    info = build_index(folder, tmp_path / "cache")
    source = open_source(folder, info.path)
    by_name = {source.name(index): index for index in range(info.samples)}
    assert source.read(by_name["cat/1.jpg"]) == {"image": b"cat/1.jpg", "mask": b"cat/1.png", "label": 0}
    assert source.read(by_name["dog/deep/2.JPEG"])["mask"] == b"dog/deep/2.png"
    assert source.with_files(by_name["cat/1.jpg"], "mask: torn") == "mask: torn (mask cat/1.png)"
    assert source.with_files(by_name["cat/1.jpg"], "torn") == "torn"
    with pytest.raises(SampleError, match=r"its mask dog/3\.png: the file is gone"):
        source.read(by_name["dog/3.jpg"])
    assert str(tmp_path / "masks") in info.places
    assert source.classes() == ["cat", "dog"]


def test_masks_make_another_source_with_another_content(folder: ImageFolder, tmp_path: Path) -> None:
    plain = build_index(ImageFolder(folder.root), tmp_path / "cache")
    masked = build_index(folder, tmp_path / "cache")
    assert plain.digest != masked.digest
    assert plain.content_digest != masked.content_digest
    assert build_index(folder, tmp_path / "cache") == masked


def test_an_index_with_masks_is_taken_again(
    folder: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PERIOD_S", PATIENCE_S)  # each scan reports once, however long it takes
    for path in filter(Path.is_dir, (tmp_path / "data").rglob("*")):
        os.utime(path, (1e9, 1e9))
    os.utime(tmp_path / "data", (1e9, 1e9))
    scans: list[int] = []
    assert build_index(folder, tmp_path / "cache", scans.append) == build_index(
        folder, tmp_path / "cache", scans.append
    )
    assert len(scans) == 1


def test_masks_outside_the_roots_are_refused(folder: ImageFolder, tmp_path: Path) -> None:
    with pytest.raises(OutsideRootsError):
        build_index(folder, tmp_path / "cache", roots=Roots([folder.root]))
    both = Roots([folder.root, str(tmp_path / "masks")])
    info = build_index(folder, tmp_path / "cache", roots=both)
    assert open_source(folder, info.path, both).read(0)["mask"] == b"cat/1.png"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "path,label,mask\na.jpg,cat,m/a.png\nb.jpg,dog,m/b.png\n"),
        ("list.csv", "a.jpg,cat,m/a.png\nb.jpg,dog,m/b.png\n"),
        ("list.csv", "mask,path,label\nm/a.png,a.jpg,cat\nm/b.png,b.jpg,dog\n"),
        ("list.txt", "a.jpg\tcat\tm/a.png\n# none\nb.jpg\tdog\tm/b.png\n"),
    ],
)
def test_a_list_names_masks_in_a_column(name: str, text: str, tmp_path: Path) -> None:
    files(tmp_path, "a.jpg", "b.jpg", "m/a.png", "m/b.png")
    (tmp_path / name).write_text(text)
    spec = FileList(tmp_path / name, masks=True)
    source = open_source(spec, build_index(spec, tmp_path / "cache").path)
    assert [source.read(index) for index in range(2)] == [
        {"image": b"a.jpg", "mask": b"m/a.png", "label": 0}, {"image": b"b.jpg", "mask": b"m/b.png", "label": 1},
    ]  # fmt: skip
    assert source.classes() == ["cat", "dog"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("list.csv", "a.jpg,1\n", "line 1: 2 columns; a row is 'path,label,mask'"),
        ("list.txt", "a.jpg 1\n", "line 1: 1 columns; a line is 'path<TAB>label<TAB>mask'"),
        ("list.txt", "a.jpg\t1\t\n", "line 1: 2 columns"),
        ("list.csv", "a.jpg,1,\n", "line 1: needs a path and a label, such as 'cats/1.jpg 3', and the path of a mask"),
    ],
)
def test_a_line_without_a_mask_is_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=said.replace("(", r"\(")):
        build_index(FileList(tmp_path / name, masks=True), tmp_path / "cache")
