"""A client names the folder of a cache, so the daemon writes only where nobody else could lead it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepserver.cache.folder import FolderError, NoFolder, held_bytes, make_room, open_file, open_folder
from prepserver.cache.store import Shape

SHAPE = Shape(100, 1 << 20)
KEY = b"k" * 32


def opened(path: Path, allowed: Path) -> int:
    return open_folder(str(path), [str(allowed)], make=True)


def test_a_folder_below_an_allowed_one_is_made(tmp_path: Path) -> None:
    fd = opened(tmp_path / "a" / "b", tmp_path)
    os.close(fd)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    os.close(opened(tmp_path, tmp_path))


@pytest.mark.parametrize("path", ["/var/elsewhere", "{}x", "{}/../x", "/"])
def test_a_folder_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    allowed = tmp_path / "caches"
    with pytest.raises(FolderError, match="only below"):
        open_folder(path.format(allowed), [str(allowed)])
    assert list(tmp_path.iterdir()) == []


def test_without_allowed_folders_there_is_no_cache_on_disk(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"nowhere.*--cache-folder"):
        open_folder(str(tmp_path), [])


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches" / "link").symlink_to(tmp_path)
    with pytest.raises(FolderError, match="only below"):
        opened(tmp_path / "caches" / "link" / "x", tmp_path / "caches")


def test_an_allowed_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.close(opened(tmp_path / "link" / "x", tmp_path / "link"))
    assert (tmp_path / "real" / "x").is_dir()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(FolderError, match="chmod go-w"):
        opened(tmp_path / "open" / "x", tmp_path)
    (tmp_path / "open").chmod(0o1777)  # as /tmp: others cannot rename what is ours there
    os.close(opened(tmp_path / "open" / "x", tmp_path))
    with pytest.raises(FolderError, match="open: name a new folder in it"):
        opened(tmp_path / "open", tmp_path)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(FolderError, match="uid is 4711: chown"):
        opened(tmp_path, tmp_path)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FolderError, match="Not a directory"):
        opened(tmp_path / "file" / "x", tmp_path)


def test_a_file_is_the_same_cache_again_and_another_one_is_begun(tmp_path: Path) -> None:
    folder = opened(tmp_path, tmp_path)
    first = open_file(folder, "one", SHAPE, KEY)
    os.pwrite(first, b"here", SHAPE.head_bytes)
    again = open_file(folder, "one", SHAPE, KEY)
    assert os.pread(again, 4, SHAPE.head_bytes) == b"here"
    with pytest.raises(OSError, match="another daemon"):
        open_file(folder, "one", SHAPE, b"j" * 32)
    os.close(first)
    os.close(again)
    other = open_file(folder, "one", SHAPE, b"j" * 32)
    assert os.pread(other, 4, SHAPE.head_bytes) == b""
    os.close(other)
    os.close(folder)


def test_a_link_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.cache").symlink_to(tmp_path / "target")
    folder = opened(tmp_path, tmp_path)
    with pytest.raises(OSError, match="symbolic"):
        open_file(folder, "one", SHAPE, KEY)
    os.close(folder)
    assert not (tmp_path / "target").exists()


def test_room_is_made_of_those_unused_longest(tmp_path: Path) -> None:
    folder = opened(tmp_path, tmp_path)
    for number in range(4):
        fd = open_file(folder, str(number), SHAPE, KEY)
        os.posix_fallocate(fd, 0, 1 << 20)
        os.utime(fd, (number, number))
        os.close(fd)
    (tmp_path / "mine.txt").write_text("no cache")
    used = os.open(tmp_path / "0.cache", os.O_RDWR)
    fcntl.flock(used, fcntl.LOCK_SH)
    assert (held_bytes(folder), held_bytes(folder, ["3", "1"])) == (4 << 20, 2 << 20)
    make_room(folder, "4", 8 << 20)
    assert len(list(tmp_path.glob("*.cache"))) == 4
    make_room(folder, "4", 4 << 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.cache", "2.cache", "3.cache", "mine.txt"]
    make_room(folder, "3", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.cache", "3.cache", "mine.txt"]
    os.close(used)
    os.close(folder)


def test_a_cache_that_is_removed_meanwhile_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another daemon, between the look into the folder and that at the file."""
    folder = opened(tmp_path, tmp_path)
    for name in ("a", "b"):
        os.close(open_file(folder, name, SHAPE, KEY))
    scandir = os.scandir

    @contextlib.contextmanager
    def listed_before(fd: int) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(fd) as entries:
            names = list(entries)
        (tmp_path / "a.cache").unlink()
        yield names

    both = held_bytes(folder)
    monkeypatch.setattr(os, "scandir", listed_before)
    assert held_bytes(folder) == both // 2
    os.close(folder)


def test_a_missing_folder_is_not_made_for_others(tmp_path: Path) -> None:
    with pytest.raises(NoFolder, match=r"cache = \S*missing: there is no folder \S*missing, and the daemon makes one"):
        open_folder(str(tmp_path / "missing"), [str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
