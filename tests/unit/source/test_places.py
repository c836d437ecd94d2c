from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.pipeline.sources import FileList, ImageFolder, SourceSpec, SyntheticImages
from prepserver.source import build_index
from prepserver.source.places import Places
from tests.support.tiny_images import jpeg, photo_tree

NAMES = st.lists(st.sampled_from(["a", "b", "dd"]), min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))


def places(spec: SourceSpec, tmp_path: Path) -> set[str]:
    return set(build_index(spec, tmp_path / "cache").places) - {str(tmp_path / "cache")}


def collected(paths: list[str], **limits: int) -> list[str]:
    """Of paths that do not exist, which so lead where they say."""
    found = Places(**limits)
    for path in paths:
        found.add_folder(b"/nowhere" + path.encode())
    return [place.removeprefix("/nowhere") for place in found.found()]


@given(st.lists(NAMES, min_size=1, max_size=30), st.integers(1, 6))
def test_few_places_hold_all_that_was_added(paths: list[str], most: int) -> None:
    found = collected(paths, most=most)
    assert len(found) <= most
    assert all(any(f"{path}/".startswith(f"{place}/") for place in found) for path in paths)
    assert not any(a != b and f"{a}/".startswith(f"{b}/") for a in found for b in found if len(paths) > most)


def test_a_place_far_from_the_others_does_not_widen_them() -> None:
    many = [f"/data/train/{number}" for number in range(200)]
    assert set(collected(["/home/user/deep/down/here", *many], most=8)) == {
        "/data/train", "/home/user/deep/down/here",
    }  # fmt: skip


def test_names_that_are_too_long_together_are_cut_to_parents() -> None:
    many = [f"/data/{number}" + "/x" * 100 for number in range(20)]
    assert sum(map(len, collected(many, most_bytes=2000))) <= 2000


def test_more_links_than_can_be_remembered_have_common_parents() -> None:
    many = [f"/annex/{number % 50}/{number}" for number in range(10_000)]
    found = collected(many)
    assert len(found) <= 128
    assert all(place.startswith("/annex") for place in found)


def test_a_name_that_is_no_text_is_held_by_its_parent(tmp_path: Path) -> None:
    found = Places()
    found.add_folder(os.fsencode(tmp_path) + b"/caf\xe9/x")
    assert list(found.found()) == [str(tmp_path)]


def test_synthetic_images_lie_in_the_cache_alone(tmp_path: Path) -> None:
    assert places(SyntheticImages(4, size=16), tmp_path) == set()


def test_a_folder_lies_where_its_root_and_its_links_lead(tmp_path: Path) -> None:
    spec = photo_tree(tmp_path / "data", 6)
    assert places(spec, tmp_path) == {spec.root}
    (tmp_path / "there").mkdir()
    (tmp_path / "there/x.jpg").write_bytes(jpeg(1))
    (tmp_path / "data/cats/linked.jpg").symlink_to(tmp_path / "there/x.jpg")
    (tmp_path / "data/cats/no_image").symlink_to("/etc/hostname")
    photo_tree(tmp_path / "more", 4)
    (tmp_path / "data/birds").symlink_to(tmp_path / "more/cats")
    (tmp_path / "root").symlink_to(tmp_path / "data")
    assert places(ImageFolder(str(tmp_path / "root")), tmp_path) == {
        str(tmp_path / "data"), str(tmp_path / "there"), str(tmp_path / "more/cats"),
    }  # fmt: skip


def test_a_list_lies_where_its_own_files_do(tmp_path: Path) -> None:
    photo_tree(tmp_path / "data", 6)
    (tmp_path / "there").mkdir()
    for name in ("x.jpg", "y.jpg"):
        (tmp_path / "there" / name).write_bytes(jpeg(1))
        (tmp_path / "data/cats" / name).symlink_to(tmp_path / "there" / name)
    (tmp_path / "data/dogs/not_listed.jpg").symlink_to("/etc/hostname")
    (tmp_path / "lists").mkdir()
    path = tmp_path / "lists/train.csv"
    path.write_text(f"../data/cats/x.jpg,0\n{tmp_path}/data/dogs/0001.jpg,1\n")
    assert places(FileList(str(path)), tmp_path) == {
        str(tmp_path / "data/cats"), str(tmp_path / "data/dogs"), str(tmp_path / "there"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["folder", "list"])
def test_a_link_on_the_way_that_leads_elsewhere_is_noticed(kind: str, tmp_path: Path) -> None:
    """None of the folders that were listed has changed, nor the list."""
    photo_tree(tmp_path / "v1", 4)
    photo_tree(tmp_path / "v2", 4)
    (tmp_path / "current").symlink_to("v1")
    (tmp_path / "data/cats").mkdir(parents=True)
    for name in ("0000.jpg", "0002.jpg"):
        (tmp_path / "data/cats" / name).symlink_to(tmp_path / "current/cats" / name)
    listed = tmp_path / "data/train.csv"
    listed.write_text("cats/0000.jpg,0\ncats/0002.jpg,0\n")
    for path in (listed, tmp_path / "data/cats", tmp_path / "data"):
        os.utime(path, (1e9, 1e9))
    spec = FileList(str(listed)) if kind == "list" else ImageFolder(str(tmp_path / "data"))
    assert str(tmp_path / "v1/cats") in places(spec, tmp_path)
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("v2")
    found = places(spec, tmp_path)
    assert str(tmp_path / "v2/cats") in found
    assert str(tmp_path / "v1/cats") not in found
