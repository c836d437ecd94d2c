"""A cache: what was put is got; nothing half written is seen; a full, damaged or cut one serves what it can."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepserver.cache import entry
from prepserver.cache import store as module
from prepserver.cache.store import Counts, Store, has_numbers
from prepserver.memory.errors import SegmentError
from tests.support.caches import EXTENT_BYTES, Cache
from tests.support.leaks import descriptors

N = 40


@pytest.fixture(params=["memory", "file"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    made = Cache(N, path=tmp_path / "cache" if request.param == "file" else None)
    yield made
    made.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(N, path=tmp_path / "cache")
    yield made
    made.close()


def record_of(index: int) -> dict[str, Any]:
    rng = np.random.default_rng(index)
    return {"image": rng.integers(0, 256, (20 + index, 30, 3), np.uint8), "label": index % 3}


def assert_record(found: dict[str, Any] | None, index: int) -> None:
    assert found is not None
    assert found["label"] == index % 3
    assert np.array_equal(found["image"], record_of(index)["image"])


def test_what_one_worker_puts_all_get(cache: Cache) -> None:
    workers = [cache.store(seat) for seat in range(3)]
    for index in range(N):
        assert all(worker.get(index, 1) is None for worker in workers)
        assert workers[index % 3].put(index, 1, record_of(index))
    for worker in [*workers, cache.store(3)]:
        for index in range(N):
            assert_record(worker.get(index, 1), index)
    counts = cache.book.counts
    assert (counts.hits, counts.misses, counts.rows, counts.bad) == (4 * N, 3 * N, N, 0)
    assert sum(record_of(index)["image"].nbytes for index in range(N)) <= counts.nbytes <= cache.book.taken_bytes


def test_the_counts_of_a_new_book_begin_with_it_but_for_rows(cache: Cache) -> None:
    worker = cache.store()
    worker.put(1, 0, record_of(1))
    worker.get(1, 0)
    assert cache.book.counts.hits == 1
    again = module.Book(cache.fd, cache.shape).counts
    assert again == Counts(rows=1, nbytes=again.nbytes)


def test_a_record_is_put_again_after_its_file_has_changed(cache: Cache) -> None:
    worker = cache.store()
    worker.put(5, 1, record_of(5))
    assert worker.get(5, 2) is None
    worker.put(5, 2, record_of(6))
    assert_record(worker.get(5, 2), 6)
    assert worker.get(5, 1) is None
    assert cache.book.counts.rows == 1


def test_a_full_cache_keeps_what_it_has_and_takes_no_more(cache: Cache) -> None:
    cache.book.allow(2 * EXTENT_BYTES)
    worker, other = cache.store(0), cache.store(1)
    kept = [index for index in range(N) if (worker if index % 2 else other).put(index, 0, record_of(index))]
    assert 2 < len(kept) < N
    assert not worker.has_room(EXTENT_BYTES)
    assert cache.book.taken_bytes == 2 * EXTENT_BYTES
    for index in range(N):
        if index in kept:
            assert_record(worker.get(index, 0), index)
        else:
            assert worker.get(index, 0) is None
    cache.book.allow(4 * EXTENT_BYTES)
    left = next(index for index in range(N) if index not in kept)
    assert worker.put(left, 0, record_of(left))


def test_an_entry_larger_than_an_extent_takes_several(cache: Cache) -> None:
    large = {"image": np.arange(3 * EXTENT_BYTES, dtype=np.uint8)}
    worker = cache.store()
    worker.put(0, 0, record_of(0))
    assert worker.put(1, 0, large)
    assert worker.put(2, 0, record_of(2))
    found = worker.get(1, 0)
    assert found is not None
    assert np.array_equal(found["image"], large["image"])
    assert_record(worker.get(0, 0), 0)
    assert_record(worker.get(2, 0), 2)


def test_a_record_beyond_the_largest_entry_is_not_kept(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRY_BYTES", 1000)
    worker = cache.store()
    assert not worker.has_room(1001)
    assert not worker.put(0, 0, record_of(0))
    assert cache.book.taken_bytes == 0


def test_for_a_full_cache_no_entry_is_made(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a dataset does not fit, most samples come to a full cache, in each epoch."""
    worker = cache.store()
    cache.book.allow(0)
    monkeypatch.setattr(entry, "pack", lambda *_: pytest.fail("it was copied"))
    assert not worker.put(0, 0, record_of(0))


def test_a_record_that_no_entry_holds_is_not_kept(cache: Cache) -> None:
    assert not cache.store().put(0, 0, {"image": object()})


def test_a_worker_killed_while_it_writes_leaves_nothing(cache: Cache) -> None:
    """The entry is written and its word is not: the next worker does it again."""
    pid = os.fork()
    if pid == 0:
        worker = cache.store(1)

        class Stopping:
            def __getitem__(self, index: int) -> int:
                return 0

            def __setitem__(self, index: int, word: int) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

        worker._table = Stopping()  # type: ignore[assignment]
        worker.put(7, 0, record_of(7))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert cache.book.taken_bytes == EXTENT_BYTES  # it is lost until the cache ends
    worker = cache.store(0)
    assert worker.get(7, 0) is None
    assert worker.put(7, 0, record_of(7))
    assert_record(worker.get(7, 0), 7)


def test_a_worker_killed_with_the_lock_gives_it_back(cache: Cache) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        fcntl.lockf(cache.fd, fcntl.LOCK_EX, 1, 0)
        os.write(writing, b"1")
        signal.pause()
        os._exit(0)
    os.read(reading, 1)
    worker = cache.store()
    assert not worker.put(1, 0, record_of(1))  # it does not wait
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    assert worker.put(1, 0, record_of(1))


def test_processes_that_put_the_same_samples_leave_good_ones(cache: Cache) -> None:
    pids = []
    for seat in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                worker = cache.store(seat)
                for index in range(N):
                    if worker.get(index, 0) is None:
                        worker.put(index, 0, record_of(index))
            finally:
                os._exit(0)
        pids.append(pid)
    worker = cache.store(5)
    while pids:
        for index in range(N):
            if (found := worker.get(index, 0)) is not None:
                assert_record(found, index)
        pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0]
    assert sum(worker.get(index, 0) is not None for index in range(N)) > N // 2  # a busy lock may cost some
    assert cache.book.counts.bad == 0


def test_arrays_of_a_record_outlive_its_cache() -> None:
    cache = Cache(N)
    worker = cache.store()
    worker.put(3, 0, record_of(3))
    found = worker.get(3, 0)
    cache.close()
    del worker, cache
    assert_record(found, 3)


@pytest.mark.parametrize("at", [0, 10, 40, 200, 500])
def test_a_flipped_byte_on_disk_is_a_miss_and_is_mended(on_disk: Cache, at: int) -> None:
    worker = on_disk.store()
    worker.put(3, 0, record_of(3))
    place = on_disk.shape.head_bytes + at
    os.pwrite(on_disk.fd, bytes([os.pread(on_disk.fd, 1, place)[0] ^ 4]), place)
    assert worker.get(3, 0) is None
    assert on_disk.book.counts.bad == 1
    assert worker.put(3, 0, record_of(3))
    assert_record(worker.get(3, 0), 3)


def test_a_word_that_leads_nowhere_is_a_miss(cache: Cache) -> None:
    worker = cache.store()
    worker.put(3, 0, record_of(3))
    for word in (1, 2**63 + 5, 2**64 - 1, (1 << 50) | 3):
        worker._table[3] = word
        assert worker.get(3, 0) is None
    assert cache.book.counts.bad == 4


def test_a_file_that_was_cut_is_a_miss(on_disk: Cache) -> None:
    worker = on_disk.store()
    worker.put(3, 0, record_of(3))
    os.ftruncate(on_disk.fd, on_disk.shape.head_bytes + 100)
    assert worker.get(3, 0) is None
    assert on_disk.book.counts.bad == 1


def test_after_a_full_disk_a_worker_only_reads(on_disk: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = on_disk.store()
    worker.put(3, 0, record_of(3))

    def refuses(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuses)
    assert not worker.put(4, 0, record_of(4))
    assert not worker.has_room(1)
    monkeypatch.undo()
    assert worker.get(4, 0) is None
    assert_record(worker.get(3, 0), 3)


def test_a_write_in_pieces_is_whole(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:700], at))
    worker = cache.store()
    worker.put(3, 0, record_of(3))
    monkeypatch.undo()
    assert_record(worker.get(3, 0), 3)


def test_a_file_without_its_table_is_refused(tmp_path: Path) -> None:
    cache = Cache(N, path=tmp_path / "cache")
    os.ftruncate(cache.fd, 100)
    with pytest.raises(SegmentError, match="table"):
        cache.store()
    cache.close()


def test_a_file_says_what_it_is_of(on_disk: Cache) -> None:
    assert has_numbers(on_disk.fd, on_disk.shape, b"k" * 32)
    assert not has_numbers(on_disk.fd, on_disk.shape, b"j" * 32)
    assert not has_numbers(on_disk.fd, on_disk.shape._replace(samples=N + 1), b"k" * 32)


def test_a_store_closes_its_descriptor() -> None:
    cache = Cache(N)
    before = descriptors()
    worker: Store | None = cache.store()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del worker
    assert len(os.listdir("/proc/self/fd")) == before
    cache.close()
