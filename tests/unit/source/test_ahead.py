"""Files of a slow file system are opened before they are needed; what is read stays the same."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepserver.order import make_order
from prepserver.pipeline.kinds import Image, Label, Mask
from prepserver.pipeline.sources import Csv, FileList, ImageFolder
from prepserver.source import SampleError, Source, build_index, local, open_source, roots
from prepserver.source.files import FileSource
from prepserver.source.local import LocalFiles, Pace
from prepserver.source.roots import ANYWHERE, Roots
from prepserver.source.shards import Shards
from prepserver.source.tables import TableSource
from prepserver.worker.streams import Stream
from tests.support.leaks import descriptors
from tests.support.tiny_images import OwnLane, tiny_pipeline
from tests.support.waiting import PATIENCE_S, wait_until

_SLOW_NS, _FAST_NS = 10_000_000, 1000
N = 80


@pytest.fixture
def all_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each read came from a slow file system."""
    monkeypatch.setattr(local, "_SLOW_NS", -(1 << 40))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "cat").mkdir(parents=True)
    for k in range(N):
        (root / "cat" / f"{k:02d}.jpg").write_bytes(b"%d" % k * 100)
    return root


def opened(root: Path, cache: Path) -> Source:
    spec = ImageFolder(str(root))
    return open_source(spec, build_index(spec, cache).path)


def all_open(early: LocalFiles) -> None:
    """Waits until its threads have opened all files."""
    wait_until(lambda: all(call.answer is not None for call in (*early._now.values(), *early._before.values())))


def read_all(source: Source) -> list[bytes]:
    """Reads all samples as a worker does, in chunks of 16 of which the next one is announced."""
    found = []
    for chunk in range(0, N, 16):
        if source.reads_ahead:
            source.prefetch(range(chunk, chunk + 16))
        found += [source.read(index)["image"] for index in range(chunk, chunk + 16)]
    return found


@pytest.mark.parametrize(("slow", "expected"), [(15, False), (16, True), (64, True)])
def test_a_quarter_of_slow_reads_makes_a_slow_dataset(slow: int, expected: bool) -> None:
    pace = Pace()
    judged = [pace.note(100, _SLOW_NS if k < slow else _FAST_NS) for k in range(64)]
    assert judged == [False] * 63 + [True]
    assert pace.is_slow == expected


def test_a_read_may_take_longer_the_more_it_brings() -> None:
    """100 MB from memory take longer than a photo from a disk."""
    pace = Pace()
    for _ in range(64):
        pace.note(100_000_000, _SLOW_NS)
    assert not pace.is_slow


def test_a_dataset_that_was_slow_is_judged_again() -> None:
    """In the second epoch it may be in memory. Its reads count only while nothing is asked for early."""
    pace = Pace()
    for _ in range(64):
        pace.note(100, _SLOW_NS)
    reads = 0
    while pace.is_slow:
        pace.note(100, _SLOW_NS)
        reads += 1
    assert reads == 8192
    for _ in range(64):
        pace.note(100, _FAST_NS)
    assert not pace.is_slow


def test_files_opened_early_are_the_same(all_slow: None, folder: Path, tmp_path: Path) -> None:
    before = descriptors()
    source = opened(folder, tmp_path / "cache")
    expected = [b"%d" % k * 100 for k in range(N)]
    assert not source.reads_ahead
    assert read_all(source) == expected
    assert source.reads_ahead
    assert read_all(source) == expected
    source.prefetch(range(16))  # and then the chunk goes to another worker
    del source
    wait_until(lambda: descriptors() == before)


def test_a_file_that_is_gone_says_so_if_opened_early(all_slow: None, folder: Path, tmp_path: Path) -> None:
    source = opened(folder, tmp_path / "cache")
    read_all(source)
    (folder / "cat" / "05.jpg").unlink()
    (folder / "cat" / "06.jpg").unlink()
    (folder / "cat" / "06.jpg").mkdir()
    (folder / "cat" / "07.jpg").write_bytes(b"")
    os.mkfifo(folder / "cat" / "pipe")
    (folder / "cat" / "pipe").rename(folder / "cat" / "08.jpg")
    source.prefetch(range(16))
    for index, why in ((5, "gone"), (6, "not a regular file"), (7, "empty"), (8, "not a regular file")):
        with pytest.raises(SampleError, match=why):
            source.read(index)
    assert source.read(9)["image"] == b"9" * 100


def test_what_lies_outside_the_roots_is_not_opened_early(all_slow: None, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    early = LocalFiles(Roots((str(folder),)))
    early.open([os.fsencode(tmp_path / "secret"), os.fsencode(folder / "cat" / "01.jpg")])
    all_open(early)
    assert early._taken(os.fsencode(tmp_path / "secret")) is None
    inside = early._taken(os.fsencode(folder / "cat" / "01.jpg"))
    assert inside is not None
    os.close(inside)


def test_a_stamp_belongs_to_the_file_that_is_read(all_slow: None, folder: Path, tmp_path: Path) -> None:
    """A cache would keep the old content under the new stamp, if the file is replaced after it was opened."""
    source, path = opened(folder, tmp_path / "cache"), folder / "cat" / "00.jpg"
    read_all(source)
    old = source.stamp(0)
    source.prefetch([0])
    assert isinstance(source, FileSource)
    all_open(source._local)
    (folder / "new").write_bytes(b"new")
    (folder / "new").rename(path)
    assert source.stamp(0) == old
    assert source.read(0)["image"] == b"0" * 100
    assert source.stamp(0) != old
    assert source.read(0)["image"] == b"new"


def test_files_that_nobody_took_are_closed(folder: Path) -> None:
    """Another worker got their chunk."""
    paths = [os.fsencode(folder / "cat" / f"{k:02d}.jpg") for k in range(4)]
    before, early = descriptors(), LocalFiles(ANYWHERE)
    early.open(paths[:2])
    early.open(paths[2:3])
    all_open(early)
    wait_until(lambda: descriptors() == before + 3)
    early.open(paths[3:])
    all_open(early)
    wait_until(lambda: descriptors() == before + 2)
    early.close()
    wait_until(lambda: descriptors() == before)
    assert early._taken(paths[3]) is None


def test_a_file_that_is_wanted_twice_is_taken_twice(folder: Path) -> None:
    """Two epochs may meet in neighbouring chunks."""
    path = os.fsencode(folder / "cat" / "00.jpg")
    before, early = descriptors(), LocalFiles(ANYWHERE)
    early.open([path])
    early.open([path])
    all_open(early)
    for _ in range(2):
        taken = early._taken(path)
        assert taken is not None
        os.close(taken)
    assert early._taken(path) is None
    assert descriptors() == before


def test_files_that_open_after_they_were_given_up_are_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were asked for on a file system that did not answer for a while."""
    goes_on = threading.Event()
    real = roots.open_below

    def slowly(*arguments: Any) -> int:
        goes_on.wait(PATIENCE_S)
        return real(*arguments)

    monkeypatch.setattr(local, "open_below", slowly)
    before, early = descriptors(), LocalFiles(ANYWHERE)
    paths = [os.fsencode(folder / "cat" / f"{k:02d}.jpg") for k in range(20)]
    early.open(paths)
    wait_until(lambda: sum(call._is_taken.locked() for call in early._now.values()) == local._AT_ONCE)
    assert early._taken(paths[-1]) is None  # it has not begun, so nobody waits for it
    assert early.status(paths[-2]).st_size == 200  # nor after a cache has asked for its stamp
    assert early._taken(paths[-2]) is None
    early.close()
    goes_on.set()
    last = local._threads()
    assert all(last.begin(lambda: 1).wait(PATIENCE_S) for _ in range(2 * local._AT_ONCE))
    wait_until(lambda: descriptors() == before)


def test_a_lack_of_memory_in_a_thread_is_no_wait(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any) -> int:
        raise MemoryError

    monkeypatch.setattr(local, "open_below", fail)
    early, path = LocalFiles(ANYWHERE), os.fsencode(folder / "cat" / "00.jpg")
    early.open([path])
    all_open(early)
    assert early._taken(path) is None


def test_all_datasets_together_have_so_many_files_open(folder: Path) -> None:
    paths = [os.fsencode(folder / "cat" / f"{k:02d}.jpg") for k in range(N)]
    before, early = descriptors(), [LocalFiles(ANYWHERE) for _ in range(6)]
    for each in early:
        each.open(paths)
    for each in early:
        all_open(each)
    assert descriptors() - before == local._MOST_IN_ALL
    for each in early:
        each.close()
    assert descriptors() == before


def test_a_fork_does_not_wait_until_threads_that_it_lacks(all_slow: None, folder: Path, tmp_path: Path) -> None:
    source = opened(folder, tmp_path / "cache")
    read_all(source)
    source.prefetch(range(16))
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(read_all(source) != expected))
    expected = read_all(source)
    source.prefetch(range(16))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == 0


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder in a file system whose pages can be dropped from memory; not so in /dev/shm."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".cold-") as name:
        yield Path(name)


def _forget(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if _is_in_memory(path):
        pytest.skip(f"the file system of {path.parent} does not drop pages when it is told to")


def _is_in_memory(path: Path) -> bool:
    """Whether the first page of a file is; reading it to find out would bring it there."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        first, pages = ctypes.c_char.from_buffer(mapped), (ctypes.c_ubyte * 1)()
        refused = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(mmap.PAGESIZE), pages
        )
        del first  # or the mapping cannot be closed
        assert not refused, os.strerror(ctypes.get_errno())
        return bool(pages[0] & 1)


def test_an_opened_file_is_brought_into_memory(on_disk: Path) -> None:
    path = on_disk / "one"
    path.write_bytes(os.urandom(100_000))
    _forget(path)
    early = LocalFiles(ANYWHERE)
    early.open([os.fsencode(path)])
    all_open(early)
    wait_until(lambda: _is_in_memory(path))
    early.close()


def test_a_range_of_a_shard_is_brought_into_memory(all_slow: None, on_disk: Path) -> None:
    path = on_disk / "shard"
    path.write_bytes(os.urandom(100_000))
    shards = Shards([str(path)], [100_000], ANYWHERE)
    for _ in range(64):
        shards.read(0, 0, 10)
    assert shards.is_slow
    assert not shards.wants
    _forget(path)
    shards.want([(0, 500, 0)])
    time.sleep(0.05)
    assert not _is_in_memory(path)  # nothing was asked for
    shards.want([(7, 0, 10), (0, 0, 50_000)])  # reading the first one raises why it cannot be
    wait_until(lambda: _is_in_memory(path))


def test_what_is_quarantined_is_not_opened_early(all_slow: None, folder: Path, tmp_path: Path) -> None:
    """Its file may be the one that hangs."""
    source = opened(folder, tmp_path / "cache")
    read_all(source)
    mine = OwnLane(tiny_pipeline(), N)
    lane = mine.lane
    lane.quarantined.add(7)
    stream = Stream(source, make_order("none", N, 0), 0, quarantined={3, 5})
    stream.prefetch(0, 10, [lane])
    assert isinstance(source, FileSource)
    assert sorted(source._local._now) == [
        os.fsencode(folder / "cat" / f"{k:02d}.jpg") for k in range(10) if k not in (3, 5, 7)
    ]
    os.close(mine.fd)


def test_masks_and_lists_are_opened_early_too(all_slow: None, folder: Path, tmp_path: Path) -> None:
    (folder / "mask").write_bytes(b"mask")
    lines = (f"cat/{k:02d}.jpg\t{k}\tmask\n" for k in range(N))
    (folder / "list.txt").write_text("".join(lines))
    spec = FileList(str(folder / "list.txt"), masks=True)
    source = open_source(spec, build_index(spec, tmp_path / "cache").path)
    for _ in range(2):
        read_all(source)
        assert source.reads_ahead
    assert source.read(3) == {"image": b"3" * 100, "mask": b"mask", "label": 3}


def test_images_that_tables_name_are_opened_early(all_slow: None, folder: Path, tmp_path: Path) -> None:
    lines = (f"cat/{k:02d}.jpg,cat/{k:02d}.jpg,{k}\n" for k in range(N))
    (folder / "table.csv").write_text("image,mask,label\n" + "".join(lines) + "../out.jpg,cat/00.jpg,7\n")
    spec = Csv(str(folder / "table.csv"), columns={"image": Image(), "mask": Mask(), "label": Label()})
    source = open_source(spec, build_index(spec, tmp_path / "cache").path)
    for _ in range(2):
        assert read_all(source) == [b"%d" % k * 100 for k in range(N)]
        assert source.reads_ahead
    source.prefetch([3, N, 4])
    assert isinstance(source, TableSource)
    assert sorted(source._local._now) == [os.fsencode(folder / "cat" / f"{k:02d}.jpg") for k in (3, 4)]
    assert source.read(3) == {"image": b"3" * 100, "mask": b"3" * 100, "label": 3}
    with pytest.raises(SampleError, match="below"):
        source.read(N)
