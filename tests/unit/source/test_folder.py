from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepserver.pipeline.sources import ImageFolder
from prepserver.source import SourceError, build_index, open_source


def make_tree(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode("utf-8", "surrogateescape"))


def scanned(root: Path, cache: Path) -> list[tuple[str, int]]:
    spec = ImageFolder(str(root))
    source = open_source(spec, build_index(spec, cache).path)
    return [(source.name(i), source.label(i)) for i in range(len(source))]


def as_torchvision(root: Path) -> list[tuple[str, int]]:
    """The order that torchvision documents: classes sorted, then sorted(os.walk), then sorted names."""
    found = []
    for label, name in enumerate(sorted(entry.name for entry in os.scandir(root) if entry.is_dir())):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            found += [
                (os.path.relpath(os.path.join(folder, file), root), label)
                for file in sorted(files)
                if file.lower().endswith((".jpg", ".jpeg", ".png", ".webp", ".gif"))
            ]
    return found


def test_files_come_in_torchvisions_order(tmp_path: Path) -> None:
    root = tmp_path / "data"
    make_tree(
        root,
        *("b/2.jpg", "b/10.JPG", "b/1.jpeg", "b/notes.txt", "b/x/1.png", "b/x-y/1.png", "b/x/z/1.gif", "b/.jpg"),
        *("a/Z.jpg", "a/a.jpg", "a/é.webp", "a/._a.jpg", "B/1.jpg", "c d/deep/er/1.jpg", "loose.jpg"),
    )
    (tmp_path / "elsewhere").mkdir()
    make_tree(tmp_path / "elsewhere", "1.jpg")
    (root / "b" / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "linked class").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "dead.jpg").symlink_to("nowhere")
    found = scanned(root, tmp_path / "cache")
    assert found == as_torchvision(root)
    assert len(found) == 16


def test_samples_are_read_with_their_label_and_name(tmp_path: Path) -> None:
    make_tree(tmp_path / "data", "cat/1.jpg", "dog/deep/2.jpg")
    spec = ImageFolder(str(tmp_path / "data"))
    info = build_index(spec, tmp_path / "cache")
    source = open_source(spec, info.path)
    assert (info.samples, info.num_classes, len(source), source.classes()) == (2, 2, 2, ["cat", "dog"])
    assert source.read(0) == {"image": b"cat/1.jpg", "label": 0}
    assert source.read(1) == {"image": b"dog/deep/2.jpg", "label": 1}
    assert [source.name(index) for index in range(2)] == ["cat/1.jpg", "dog/deep/2.jpg"]


@pytest.mark.parametrize("index", [-1, 2, 1 << 40])
def test_an_index_out_of_range_is_refused(tmp_path: Path, index: int) -> None:
    make_tree(tmp_path / "data", "cat/1.jpg", "dog/2.jpg")
    spec = ImageFolder(str(tmp_path / "data"))
    source = open_source(spec, build_index(spec, tmp_path / "cache").path)
    for ask in (source.read, source.name, source.label):
        with pytest.raises(IndexError, match="of 2"):
            ask(index)


def test_names_that_are_not_utf8_survive(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "data") + b"/cl\xffss"
    os.makedirs(folder)
    with open(folder + b"/\xfe\xff.jpg", "wb") as file:
        file.write(b"content")
    spec = ImageFolder(str(tmp_path / "data"))
    source = open_source(spec, build_index(spec, tmp_path / "cache").path)
    assert source.read(0)["image"] == b"content"
    assert os.fsencode(source.name(0)) == b"cl\xffss/\xfe\xff.jpg"
    assert os.fsencode(source.classes()[0]) == b"cl\xffss"


def refused(root: Path | str) -> str:
    with pytest.raises(SourceError) as caught, tempfile.TemporaryDirectory() as cache:
        build_index(ImageFolder(str(root)), Path(cache))
    caught.value.reason.encode()  # the text can be sent
    return caught.value.reason


def test_a_missing_root_and_a_root_that_is_a_file_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert f"{tmp_path}/nope does not exist" in refused(tmp_path / "nope")
    assert f"{tmp_path}/file is not a folder" in refused(tmp_path / "file")


def test_a_root_without_class_folders_says_what_is_expected(tmp_path: Path) -> None:
    assert f"ImageFolder expects {tmp_path}/<class>/<image>" in refused(tmp_path)
    (tmp_path / "1.jpg").touch()
    assert "1 images lie in the folder itself" in refused(tmp_path)


def test_classes_without_images_are_named_with_known_endings(tmp_path: Path) -> None:
    make_tree(tmp_path, "a/1.jpg", "b/notes.txt", "c/deep/x.mp4")
    (tmp_path / "d\udcff").mkdir()
    text = refused(tmp_path)
    assert "3 of 4 class folders" in text
    assert ": b, c, d" in text
    assert ".jpg .jpeg .png" in text


@pytest.fixture
def powerless() -> Iterator[int]:
    """The uid of this test, which is nobody's where tests run as root: root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield os.geteuid()
    os.seteuid(before)


def test_a_folder_that_may_not_be_read_is_named_with_the_uid(powerless: int) -> None:
    with tempfile.TemporaryDirectory() as name:  # tmp_path lies below a folder that only its owner may enter
        closed = Path(name) / "a" / "closed"
        make_tree(Path(name), "a/1.jpg", "a/closed/2.jpg")
        closed.chmod(0)
        try:
            assert f"no permission to read the folder {closed} as uid {powerless}" in refused(name)
        finally:
            closed.chmod(0o700)


def test_a_link_back_up_is_an_error_and_not_an_endless_scan(tmp_path: Path) -> None:
    make_tree(tmp_path, "a/b/1.jpg")
    (tmp_path / "a/b/up").symlink_to("..")
    assert f"the link {tmp_path}/a/b/up leads to a folder that it lies in" in refused(tmp_path)


def test_a_link_that_leads_to_itself_is_named(tmp_path: Path) -> None:
    make_tree(tmp_path, "a/1.jpg")
    (tmp_path / "a/loop").symlink_to("loop")
    assert f"the target of the link {tmp_path}/a/loop is a link that leads back to itself" in refused(tmp_path)


def test_two_links_to_one_folder_are_no_loop(tmp_path: Path) -> None:
    make_tree(tmp_path / "data", "a/real/1.jpg")
    (tmp_path / "data/a/l1").symlink_to("real")
    (tmp_path / "data/a/l2").symlink_to("real")
    assert build_index(ImageFolder(str(tmp_path / "data")), tmp_path / "cache").samples == 3


def test_the_scan_tells_the_final_number(tmp_path: Path) -> None:
    make_tree(tmp_path / "data", *(f"a/{i}.jpg" for i in range(50)))
    counts: list[int] = []
    build_index(ImageFolder(str(tmp_path / "data")), tmp_path / "cache", counts.append)
    assert counts[-1] == 50
    assert counts == sorted(counts)


def test_a_report_that_raises_ends_the_scan_and_leaves_no_file(tmp_path: Path) -> None:
    def cancel(_count: int) -> None:
        raise InterruptedError

    make_tree(tmp_path / "data", "a/1.jpg")
    with pytest.raises(InterruptedError):
        build_index(ImageFolder(str(tmp_path / "data")), tmp_path / "cache", cancel)
    assert os.listdir(tmp_path / "cache") == []
