"""Datasets as the daemon lists them: lists of files, what is remembered, and what is noticed."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from prepclient import FileList, ImageFolder, PrepClient, Tar
from tests.support.clients import OPS, inline_rows, read
from tests.support.odd_images import listed
from tests.support.server import Server
from tests.support.tiny_images import jpeg, photo_tree

pytestmark = pytest.mark.integration


def test_a_list_names_files_relative_to_its_folder_or_absolute(server: Server, tmp_path: Path) -> None:
    photo_tree(tmp_path / "tree", 6)
    (tmp_path / "other.jpg").write_bytes(jpeg(77))
    source = listed(
        tmp_path / "train.txt", [("tree/dogs/0005.jpg", 7), (f"{tmp_path}/other.jpg", 1), ("tree/cats/0000.jpg", 0)]
    )
    (tmp_path / "train.csv").write_text(
        f"path,label\ntree/dogs/0005.jpg,7\n{tmp_path}/other.jpg,1\ntree/cats/0000.jpg,0\n"
    )
    for given in (source, FileList(tmp_path / "train.csv")):
        with PrepClient(given, OPS, fields="dict", batch_size=3, runtime_dir=server.runtime_dir) as client:
            (batch,) = list(client)
            assert batch["label"].tolist() == [7, 1, 0]
            assert batch["index"].tolist() == [0, 1, 2]
            assert read(client) == inline_rows(given, epochs=2, batch_size=3)[3:]


def test_a_relative_path_is_the_clients(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo_tree(tmp_path / "tree", 4)
    monkeypatch.chdir(tmp_path)
    with PrepClient(ImageFolder("tree"), OPS, batch_size=4, runtime_dir=server.runtime_dir) as client:
        assert client.samples == 4
        assert client.num_classes == 2


def test_an_unchanged_dataset_is_not_listed_again(server: Server, tmp_path: Path) -> None:
    source = photo_tree(tmp_path, 30)
    cache = server.home / "cache"
    for folder in (tmp_path, tmp_path / "cats", tmp_path / "dogs"):
        os.utime(folder, (1e9, 1e9))  # what has changed a moment ago is not trusted yet

    def attach() -> dict[str, int]:
        with PrepClient(source, OPS, runtime_dir=server.runtime_dir) as client:
            assert client.samples == 30
        return {path.name: path.stat().st_mtime_ns for path in cache.glob("*.idx")}

    before = attach()
    assert attach() == before
    # What a folder holds is known by the folder's time: with that put back, a new file goes unseen.
    folder = tmp_path / "cats"
    times = folder.stat()
    (folder / "zzzz.jpg").write_bytes(jpeg(1))
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert attach() == before


def test_a_changed_dataset_is_noticed_at_the_next_attach(server: Server, tmp_path: Path) -> None:
    source = photo_tree(tmp_path, 30)

    def indices() -> int:
        with PrepClient(source, OPS, fields="dict", batch_size=50, runtime_dir=server.runtime_dir) as client:
            return len(read(client))

    assert indices() == 30
    (tmp_path / "dogs" / "new.jpg").write_bytes(jpeg(500))
    assert indices() == 31
    (tmp_path / "emus").mkdir()
    (tmp_path / "emus" / "one.jpg").write_bytes(jpeg(501))
    assert indices() == 32
    (tmp_path / "cats" / "0000.jpg").unlink()
    assert indices() == 31
    assert len(inline_rows(source, batch_size=50)) == 31


def test_jobs_on_old_and_new_states_of_a_dataset_run_together(server: Server, tmp_path: Path) -> None:
    source = photo_tree(tmp_path, 30)
    expected_old = inline_rows(source, batch_size=10)
    with (
        PrepClient(source, OPS, fields="dict", batch_size=10, runtime_dir=server.runtime_dir) as old,
        PrepClient(source, OPS, fields="dict", batch_size=10, runtime_dir=server.runtime_dir) as new,
    ):
        assert old.samples == 30
        (tmp_path / "cats" / "000.jpg").write_bytes(jpeg(900))
        assert new.samples == 31
        assert len(server.status()["streams"]) == 2
        assert read(old) == expected_old
        assert read(new) == inline_rows(source, batch_size=10)


def test_tar_shards_give_the_rows_of_their_files(server: Server, tmp_path: Path) -> None:
    source = photo_tree(tmp_path / "tree", 30)
    files = sorted((tmp_path / "tree").rglob("*.jpg"))
    for shard in range(3):
        with tarfile.open(tmp_path / f"train-{shard}.tar", "w") as archive:
            for number in range(10 * shard, 10 * shard + 10):
                (tmp_path / "cls").write_text(str(["cats", "dogs"].index(files[number].parent.name)))
                archive.add(files[number], f"{number:04}.jpg")
                archive.add(tmp_path / "cls", f"{number:04}.cls")
    tar = Tar(tmp_path / "train-{0..2}.tar")
    for shuffle in (False, True):
        with PrepClient(
            tar, OPS, batch_size=8, shuffle=shuffle, fields="dict", runtime_dir=server.runtime_dir
        ) as client:
            assert client.samples == 30
            assert read(client) == inline_rows(source, epochs=1, batch_size=8, shuffle=shuffle)
