"""The daemon's caches: made once for a dataset and a head, within the budget, ended when nobody reads the dataset."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepserver.cache.folder import FolderError
from prepserver.cache.lifetime import KEPT_S
from prepserver.cache.store import Shape, Store
from prepserver.daemon.caches import Caches
from prepserver.pipeline.caching import CacheSpec
from prepserver.protocol import work
from prepserver.protocol.codec import decode, encode
from tests.support.leaks import descriptors

LISTING = work.Indexed("/index", 1000, 10, "d" * 64, "c" * 64)
DECODED = CacheSpec("decoded", "h" * 64, ("Decode", "Resize"))
ENCODED = CacheSpec("encoded")
ROW = {"image": np.zeros((64, 64, 3), np.uint8)}


class World:
    """Caches, and a worker that hears of them."""

    def __init__(self, budget_bytes: int = 16 << 20, folders: Sequence[str] = ()) -> None:
        self.now_s = 1000.0
        self.caches = Caches(budget_bytes, 1 << 30, folders, lambda: self.now_s)
        self.caches.tell = self.hear
        self.stores: dict[int, Store] = {}
        self.heard: list[Any] = []

    def hear(self, message: Any, fds: Sequence[int]) -> None:
        self.heard.append(decode(encode(message), work.TO_WORKER))
        if isinstance(message, work.AddCache):
            shape = Shape(message.samples, message.extent_bytes)
            self.stores[message.cache] = Store(fds[0], shape, 0, message.is_file)
        else:
            del self.stores[message.cache]

    def fill(self, cache: int, rows: int) -> int:
        store = self.stores[cache]
        return sum(store.put(index, 0, ROW) for index in range(rows) if store.get(index, 0) is None)

    def tick(self, *listings: work.Indexed, after_s: float = 0.2) -> None:
        self.now_s += after_s
        self.caches.tick({listing.key for listing in listings})


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    before = descriptors()
    yield made
    made.caches.close()
    made.stores.clear()
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_cache_serves_all_who_want_the_same(world: World) -> None:
    other = replace(LISTING, digest="e" * 64)
    for wanted, listing in ((DECODED, LISTING), (DECODED, LISTING), (ENCODED, LISTING), (DECODED, other)):
        world.caches.want(wanted, listing, "/data")
    world.caches.want(None, LISTING, "/data")
    assert [(m.listing, m.head) for m in world.heard] == [
        (LISTING.key, DECODED.head), (LISTING.key, ""), (other.key, DECODED.head)
    ]  # fmt: skip
    assert [message.cache for message, _ in world.caches.setup()] == [1, 2, 3]
    roots = replace(LISTING, roots=["/data"])
    assert roots.key != LISTING.key  # what one user may read is not served to another


def test_none_is_made_in_memory_beside_one_on_disk(tmp_path: Path) -> None:
    world = World(folders=[str(tmp_path)])
    for wanted in (replace(ENCODED, folder=str(tmp_path)), ENCODED, DECODED):
        world.caches.want(wanted, LISTING, "/data")
    assert [each["place"] for each in world.caches.snapshot()] == [str(tmp_path), "memory"]
    world.caches.close()


def test_the_state_says_what_a_cache_holds(world: World) -> None:
    world.caches.want(DECODED, LISTING, "/data")
    assert world.fill(1, 20) == 20
    for index in range(30):
        world.stores[1].get(index, 0)
    (found,) = world.caches.snapshot()
    assert found == {
        "id": 1, "source": "/data", "form": "decoded", "ops": ["Decode", "Resize"], "place": "memory", "samples": 1000,
        "rows": 20, "bytes": found["bytes"], "hits": 20, "misses": 30, "hit_rate": 0.4, "damaged": 0, "idle_s": None,
    }  # fmt: skip
    assert 20 * ROW["image"].nbytes < found["bytes"] == world.caches.memory_bytes


def test_caches_share_the_budget(world: World, caplog: pytest.LogCaptureFixture) -> None:
    one, other = (replace(LISTING, digest=digest * 64, samples=2000) for digest in "de")
    world.caches.want(DECODED, one, "/data")
    world.caches.want(DECODED, other, "/val")
    world.tick(one, other)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            world.fill(1, 2000)
            world.fill(2, 2000)
            world.tick(one, other)
    assert 15 << 20 < world.caches.memory_bytes <= 16 << 20
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all("is full with" in text and "[cache] memory" in text for text in said)
    for each in (one, other):  # the setting is for both together
        full = world.caches.full_of(each.key)
        assert full is not None
        assert full.all_bytes > (one.samples + other.samples) * ROW["image"].nbytes


def test_a_cache_ends_when_nobody_has_read_its_dataset_for_long(world: World) -> None:
    world.caches.want(DECODED, LISTING, "/data")
    world.tick(LISTING)
    world.tick(after_s=KEPT_S)
    world.tick(after_s=KEPT_S / 2)
    assert world.stores
    world.tick(LISTING)
    world.tick(after_s=KEPT_S / 2)
    assert world.caches.snapshot()[0]["idle_s"] == 0
    world.tick(after_s=KEPT_S + 1)
    assert world.heard[-1] == work.DropCache(1)
    assert not world.stores
    assert world.caches.snapshot() == []


def test_an_idle_cache_gives_way_to_one_that_is_full(world: World) -> None:
    one, other = replace(LISTING, samples=2000), replace(LISTING, digest="e" * 64)
    world.caches.want(DECODED, one, "/data")
    world.fill(1, 2000)
    world.tick(one)
    world.fill(1, 2000)
    world.caches.want(DECODED, other, "/val")
    world.tick(other)
    assert world.heard[-1] == work.DropCache(1)
    assert world.caches.are_leaving
    world.tick(other, after_s=3)
    assert not world.caches.are_leaving
    assert world.fill(2, 1000) > 900


def test_idle_memory_can_be_had_for_something_else(world: World) -> None:
    world.caches.want(DECODED, LISTING, "/data")
    world.tick(LISTING)
    world.caches.free_idle()
    assert world.stores
    world.tick()
    world.caches.free_idle()
    assert not world.stores


def test_a_cache_on_disk_is_the_same_file_again(tmp_path: Path) -> None:
    wanted = replace(DECODED, folder=str(tmp_path / "here"))
    for times in range(2):
        world = World(folders=[str(tmp_path)])
        world.caches.check_folder(wanted, make=True)
        world.caches.want(wanted, LISTING, "/data")
        store = world.stores[1]
        assert [store.get(index, 0) is not None for index in range(3)] == [times > 0] * 3
        world.fill(1, 3)
        (found,) = world.caches.snapshot()
        assert (found["place"], found["rows"], found["hits"]) == (str(tmp_path / "here"), 3, 6 * times)
        assert world.caches.memory_bytes == 0
        world.tick(after_s=2 * KEPT_S)
        world.tick(after_s=2 * KEPT_S)
        assert world.caches.snapshot() == []
    assert len(list((tmp_path / "here").iterdir())) == 1


def test_a_folder_is_checked_before_a_job_is_admitted(world: World, tmp_path: Path) -> None:
    world.caches.check_folder(DECODED, make=False)
    world.caches.check_folder(None, make=False)
    with pytest.raises(FolderError):
        world.caches.check_folder(replace(DECODED, folder=str(tmp_path)), make=True)


def test_without_its_cache_a_job_runs_all_the_same(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.caches.folders = [str(tmp_path)]
    (tmp_path / "full").mkdir()
    world.caches.want(replace(DECODED, folder=str(tmp_path / "full")), LISTING, "/data")
    (path,) = (tmp_path / "full").iterdir()
    world.caches.want(replace(DECODED, head="j" * 64, folder="/elsewhere"), LISTING, "/data")
    assert "no cache of /data: cache = /elsewhere" in caplog.text
    assert len(world.heard) == 1
    assert path.suffix == ".cache"


def test_there_are_so_many_caches_at_most(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A client may ask for one after another, each with another head."""
    for number in range(64):
        world.caches.want(replace(DECODED, head=f"{number}"), replace(LISTING, digest=f"{number}"), "/data")
    world.caches.want(replace(DECODED, head="more"), LISTING, "/data")
    assert len(world.stores) == 64
    assert "64 caches are in use" in caplog.text
    world.tick(*(replace(LISTING, digest=f"{number}") for number in range(64) if number != 5))
    world.caches.want(replace(DECODED, head="more"), LISTING, "/data")
    assert len(world.stores) == 64
    assert world.heard[-2:] == [work.DropCache(6), world.heard[-1]]
    assert world.heard[-1].head == "more"


def test_caches_on_disk_share_the_budget_of_their_folder(tmp_path: Path) -> None:
    world = World(folders=[str(tmp_path)])
    world.caches.disk_bytes = 24 << 20
    one, other = (replace(LISTING, digest=digest * 64, samples=2000) for digest in "de")
    wanted = replace(DECODED, folder=str(tmp_path))
    world.caches.want(wanted, one, "/data")
    world.fill(1, 500)
    world.caches.want(wanted, other, "/val")
    world.tick(one, other)
    for _ in range(10):
        world.fill(2, 2000)
        world.tick(one, other)
    sizes = [found["bytes"] for found in world.caches.snapshot()]
    assert all(size > 4 << 20 for size in sizes)
    assert sum(sizes) <= 24 << 20
    world.caches.close()


def test_decoded_samples_of_another_version_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an update a decoder or an op may give other pixels; what is stored stays what it is."""
    (tmp_path / "kept").mkdir(mode=0o700)
    kept = []
    for version in ("1.0", "1.1"):
        monkeypatch.setattr("prepserver.daemon.caches.__version__", version)
        world = World(folders=[str(tmp_path)])
        for each in (ENCODED, DECODED):
            world.caches.want(replace(each, folder=str(tmp_path / "kept")), LISTING, "/data")
        kept.append([world.fill(cache, 10) for cache in (1, 2)])
        world.caches.close()
    assert kept == [[10, 10], [0, 10]]


def test_a_small_budget_is_named_in_kib(caplog: pytest.LogCaptureFixture) -> None:
    world = World(300 << 10)
    world.caches.want(ENCODED, replace(LISTING, samples=4000), "/data")
    assert "its table alone takes 31 KiB, more than a 16th of the budget of 300 KiB" in caplog.text
    world.caches.close()


@pytest.mark.parametrize("form", ["memory", "disk"])
def test_a_table_without_an_end_takes_nothing(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A spec of a few bytes repeats a dataset a million times: neither the disk nor the others pay for it."""
    (tmp_path / "kept").mkdir(mode=0o700)
    world = World(folders=[str(tmp_path)])
    wanted = replace(ENCODED, folder=str(tmp_path / "kept") if form == "disk" else None)
    world.caches.want(wanted, replace(LISTING, samples=1 << 30), "/data")
    assert world.heard == []
    assert os.listdir(tmp_path / "kept") == []
    assert "1073741824 samples its table alone takes 8192 MiB" in caplog.text
    world.caches.want(wanted, LISTING, "/data")
    world.tick(LISTING)
    assert world.fill(2, 10) == 10
    world.caches.close()


def test_large_row_groups_need_a_cache_that_holds_half(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for coarse_bytes, is_needed, is_warned in ((0, False, False), (32 << 20, True, False), (33 << 20, False, True)):
        caplog.clear()
        assert world.caches.are_needed(replace(LISTING, coarse_bytes=coarse_bytes), "/data/a.parquet") is is_needed
        assert ("decode a whole row group: they take 33 MiB, and caches in memory have 16" in caplog.text) is is_warned
    caplog.clear()
    assert not world.caches.are_needed(replace(LISTING, coarse_bytes=33 << 20), "/data/a.parquet")
    assert not caplog.records  # every rank asks
    narrow = replace(LISTING, samples=200_000, coarse_bytes=4 << 20)  # an entry takes more than the numbers in it
    assert not world.caches.are_needed(narrow, "/data/a.parquet")
    assert world.caches.are_needed(replace(narrow, samples=100_000), "/data/a.parquet")
    assert not world.caches.are_needed(replace(narrow, coarse_bytes=0), "/data/a.parquet")
