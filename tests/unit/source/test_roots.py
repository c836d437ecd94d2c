"""Sources are read below the roots and nowhere else, whatever links say and whenever they were laid."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from prepserver.pack.report import Report
from prepserver.pack.run import Options, pack
from prepserver.pack.transcode import Transcoder
from prepserver.pipeline.sources import FileList, ImageFolder, Packed, SourceSpec, SyntheticImages
from prepserver.source import OutsideRootsError, Roots, SampleError, SourceError, build_index, open_source
from tests.support.leaks import descriptors
from tests.support.tiny_images import photo_tree


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    photo_tree(tmp_path / "data" / "set", 4)
    return tmp_path / "data" / "set"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    photo_tree(tmp_path / "secret", 4)
    return tmp_path / "secret"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots([str(tmp_path / "data")])


def index(spec: SourceSpec, tmp_path: Path, roots: Roots | None) -> int:
    return build_index(spec, tmp_path / "cache", roots=roots).samples


def test_a_root_holds_itself_and_what_lies_below(tmp_path: Path) -> None:
    roots = Roots(["/data", "/more/"])
    assert all(roots.holds(path) for path in (b"/data", b"/data/", b"/data/a", b"/more/x/y", b"/data/a (deleted)"))
    assert not any(roots.holds(path) for path in (b"/", b"/database", b"/mor", b"/x/data", b"(unreachable)/data", b""))
    assert Roots(["/"]).holds(b"/anything")


def test_a_root_may_be_a_link(tmp_path: Path, inside: Path) -> None:
    (tmp_path / "name").symlink_to(tmp_path / "data")
    assert index(ImageFolder(str(inside)), tmp_path, Roots([str(tmp_path / "name")])) == 4
    assert index(ImageFolder(str(tmp_path / "name" / "set")), tmp_path, Roots([str(tmp_path / "name")])) == 4


def test_what_lies_below_is_indexed_and_read(tmp_path: Path, inside: Path, roots: Roots) -> None:
    spec = ImageFolder(str(inside))
    info = build_index(spec, tmp_path / "cache", roots=roots)
    source = open_source(spec, info.path, roots)
    assert [source.read(i)["image"] for i in range(4)] == [path.read_bytes() for path in sorted(inside.rglob("*.jpg"))]


def _folder(inside: Path, outside: Path) -> SourceSpec:
    return ImageFolder(str(outside))


def _folder_by_dots(inside: Path, outside: Path) -> SourceSpec:
    return ImageFolder(f"{inside}/../../{outside.name}")


def _folder_by_link(inside: Path, outside: Path) -> SourceSpec:
    (inside.parent / "link").symlink_to(outside)
    return ImageFolder(str(inside.parent / "link"))


def _class_by_link(inside: Path, outside: Path) -> SourceSpec:
    (inside / "birds").symlink_to(outside / "cats")
    return ImageFolder(str(inside))


def _missing(inside: Path, outside: Path) -> SourceSpec:
    return ImageFolder(str(outside / "nothing"))


def _list(inside: Path, outside: Path) -> SourceSpec:
    (outside / "list.txt").write_text(f"{inside}/cats/0000.jpg 0\n")
    return FileList(str(outside / "list.txt"))


def _list_by_link(inside: Path, outside: Path) -> SourceSpec:
    _list(inside, outside)
    (inside / "list.txt").symlink_to(outside / "list.txt")
    return FileList(str(inside / "list.txt"))


def _entry(inside: Path, outside: Path) -> SourceSpec:
    (inside / "list.txt").write_text(f"cats/0000.jpg 0\n{outside}/cats/0001.jpg 1\n")
    return FileList(str(inside / "list.txt"))


def _entry_by_dots(inside: Path, outside: Path) -> SourceSpec:
    (inside / "list.txt").write_text(f"cats/0000.jpg 0\n../../{outside.name}/cats/0001.jpg 1\n")
    return FileList(str(inside / "list.txt"))


def _packed(inside: Path, outside: Path) -> SourceSpec:
    return Packed(str(outside))


WAYS_OUT = [
    _folder, _folder_by_dots, _folder_by_link, _class_by_link, _missing, _list, _list_by_link, _entry, _entry_by_dots,
    _packed,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("cached", [False, True])
def test_no_way_leads_out(
    way: Callable[[Path, Path], SourceSpec], cached: bool, tmp_path: Path, inside: Path, outside: Path, roots: Roots
) -> None:
    spec = way(inside, outside)
    if cached:  # by somebody who may read there
        for path in (*inside.rglob("*"), *outside.rglob("*"), inside, outside):
            os.utime(path, (10**9, 10**9))
        try:
            index(spec, tmp_path, None)
        except SourceError:
            assert way in (_missing, _packed)
    with pytest.raises(OutsideRootsError, match=f"below the source roots .*{tmp_path}/data.*--root") as caught:
        index(spec, tmp_path, roots)
    assert str(outside / "cats" / "0000.jpg") not in str(caught.value)


def test_what_a_link_leads_to_is_not_told(tmp_path: Path, inside: Path, outside: Path, roots: Roots) -> None:
    with pytest.raises(OutsideRootsError) as caught:
        index(_class_by_link(inside, outside), tmp_path, roots)
    assert str(inside / "birds") in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_is_missing_outside_looks_like_what_is_there(tmp_path: Path, outside: Path, roots: Roots) -> None:
    texts = []
    for name in ("cats", "nope"):
        with pytest.raises(OutsideRootsError) as caught:
            index(ImageFolder(str(outside / name)), tmp_path, roots)
        texts.append(str(caught.value).replace(name, "X"))
    assert texts[0] == texts[1]


def test_a_missing_dataset_below_the_roots_is_missing(tmp_path: Path, inside: Path, roots: Roots) -> None:
    with pytest.raises(SourceError, match="does not exist") as caught:
        index(ImageFolder(str(inside / "nothing")), tmp_path, roots)
    assert not isinstance(caught.value, OutsideRootsError)


@pytest.mark.parametrize("when", ["before the scan", "after it"])
def test_a_file_that_leads_out_is_a_bad_sample(
    when: str, tmp_path: Path, inside: Path, outside: Path, roots: Roots
) -> None:
    spec = ImageFolder(str(inside))
    victim = inside / "cats" / "0000.jpg"

    def replace() -> None:
        victim.unlink()
        victim.symlink_to(outside / "cats" / "0000.jpg")

    if when == "before the scan":
        replace()
    source = open_source(spec, build_index(spec, tmp_path / "cache", roots=roots).path, roots)
    if when == "after it":
        replace()
    with pytest.raises(SampleError, match="outside the source roots") as caught:
        source.read(0)
    assert "secret" not in str(caught.value)
    assert source.read(1)["image"] == (inside / "cats" / "0001.jpg").read_bytes()


def test_a_folder_that_leads_out_later_has_bad_samples(
    tmp_path: Path, inside: Path, outside: Path, roots: Roots
) -> None:
    spec = ImageFolder(str(inside))
    source = open_source(spec, build_index(spec, tmp_path / "cache", roots=roots).path, roots)
    (inside / "cats").rename(inside / "old")
    (inside / "cats").symlink_to(outside / "cats")
    with pytest.raises(SampleError, match="outside the source roots"):
        source.read(0)


def test_links_that_stay_below_are_fine(tmp_path: Path, inside: Path, roots: Roots) -> None:
    (inside / "birds").symlink_to(inside / "cats")
    (inside / "dogs" / "again.jpg").symlink_to(inside / "cats" / "0000.jpg")
    spec = ImageFolder(str(inside))
    source = open_source(spec, build_index(spec, tmp_path / "cache", roots=roots).path, roots)
    assert len(source) == 7
    assert all(source.read(i)["image"] for i in range(7))


def _packed_inside(tmp_path: Path, outside: Path) -> Packed:
    packed = tmp_path / "data" / "packed"
    packed.parent.mkdir(exist_ok=True)
    pack(ImageFolder(str(outside)), packed, Options(Transcoder(False), shard_bytes=60_000), Report())
    return Packed(str(packed))


@pytest.mark.parametrize("part", ["index", "shard"])
@pytest.mark.parametrize("behind", ["the same", "another", "a folder", "nothing"])
def test_nothing_is_told_of_a_packed_part_that_leads_out(
    part: str, behind: str, tmp_path: Path, outside: Path, roots: Roots
) -> None:
    spec = _packed_inside(tmp_path, outside)
    (found,) = Path(spec.root).glob(f"{part}-*")
    target = tmp_path / "secret" / "target"
    match behind:
        case "the same":
            found.rename(target)
        case "another":
            target.write_bytes(b"x" * 1234)
        case "a folder":
            target.mkdir()
    found.unlink(missing_ok=True)
    found.symlink_to(target)
    with pytest.raises(OutsideRootsError) as caught:
        index(spec, tmp_path, roots)
    expected = f"the {part} {found} does not lie below the source roots of the server"
    assert str(caught.value).startswith(expected)
    assert "secret" not in str(caught.value)


def test_a_shard_that_leads_out_later_has_bad_samples(tmp_path: Path, outside: Path, roots: Roots) -> None:
    spec = _packed_inside(tmp_path, outside)
    source = open_source(spec, build_index(spec, tmp_path / "cache", roots=roots).path, roots)
    (shard,) = Path(spec.root).glob("shard-*")
    shard.rename(tmp_path / "secret" / "target")
    shard.symlink_to(tmp_path / "secret" / "target")
    before = descriptors()
    with pytest.raises(SampleError, match="outside the source roots"):
        source.read(0)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("behind", ["nothing", "a folder", "a socket"])
def test_of_a_sample_that_leads_out_nothing_is_told(
    behind: str, tmp_path: Path, inside: Path, outside: Path, roots: Roots
) -> None:
    spec = ImageFolder(str(inside))
    source = open_source(spec, build_index(spec, tmp_path / "cache", roots=roots).path, roots)
    victim = inside / "cats" / "0000.jpg"
    victim.unlink()
    victim.symlink_to(outside / "target")
    if behind == "a folder":
        (outside / "target").mkdir()
    elif behind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(outside / "target"))
    with pytest.raises(SampleError, match="outside the source roots"):
        source.read(0)


def test_what_is_made_and_not_read_has_no_place(tmp_path: Path, roots: Roots) -> None:
    assert index(SyntheticImages(5, size=16), tmp_path, roots) == 5


def test_a_link_to_itself_below_the_roots_is_a_dataset_error(tmp_path: Path, inside: Path, roots: Roots) -> None:
    (inside / "loop").symlink_to("loop")
    with pytest.raises(SourceError, match="back to itself"):
        index(ImageFolder(str(inside / "loop")), tmp_path, roots)
