from __future__ import annotations

import os
from pathlib import Path

import pytest

from prepserver.source.cache import ListingCache
from prepserver.source.container import UNFINISHED
from prepserver.source.errors import SourceError

KEY = "k" * 32


def publish(cache: ListingCache, state: int, age_s: int = 0) -> Path:
    path = cache.publish(KEY, f"{state:064d}"[::-1], {"state": state}, {"a": memoryview(b"x")}).path
    stamp = path.stat().st_mtime - age_s
    os.utime(path, (stamp, stamp))
    return path


@pytest.fixture
def cache(tmp_path: Path) -> ListingCache:
    return ListingCache(tmp_path / "a" / "cache")


def test_the_folder_is_made_for_its_owner_alone(cache: ListingCache) -> None:
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SourceError, match="chmod 700"):
        ListingCache(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"file/cache: Not a directory"):
        ListingCache(tmp_path / "file" / "cache")


def test_states_come_newest_first(cache: ListingCache) -> None:
    for state, age_s in ((1, 2000), (2, 1000), (3, 3000)):
        publish(cache, state, age_s)
    assert [container.meta["state"] for container in cache.candidates(KEY)] == [2, 1, 3]
    assert not list(cache.candidates("other"))


def test_a_broken_file_is_passed_over_and_removed(cache: ListingCache) -> None:
    good, bad = publish(cache, 1), publish(cache, 2)
    os.truncate(bad, 10)
    assert [container.path for container in cache.candidates(KEY)] == [good]
    assert not bad.exists()


def test_a_broken_file_that_cannot_be_removed_is_passed_over(cache: ListingCache) -> None:
    good = publish(cache, 1)
    (cache.folder / f"{KEY}-{'0' * 32}.idx").mkdir()
    assert [container.path for container in cache.candidates(KEY)] == [good]


def test_old_states_are_tidied_away_but_the_newest_eight(cache: ListingCache) -> None:
    for state in range(12):
        publish(cache, state, age_s=100 - state)
    states = [container.meta["state"] for container in cache.candidates(KEY)]
    assert states == [11, 10, 9, 8, 7, 6, 5, 4]


def test_what_killed_processes_left_is_removed_after_an_hour(cache: ListingCache) -> None:
    old, fresh = (cache.folder / f"{UNFINISHED}{name}" for name in ("old", "fresh"))
    old.touch()
    fresh.touch()
    stamp = fresh.stat().st_mtime - 3700
    os.utime(old, (stamp, stamp))
    publish(cache, 1)
    assert not old.exists()
    assert fresh.exists()
