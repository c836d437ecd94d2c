from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.pipeline.sources import FileList, Filter, ImageFolder, SourceSpec, SyntheticImages
from prepserver.source import Listing, SourceError, build_index, open_source, progress, reader
from prepserver.source.cache import discard
from prepserver.source.container import BrokenContainerError, Container, write_container
from prepserver.source.files import FileSource, FileTable
from prepserver.source.roots import ANYWHERE
from tests.support.waiting import PATIENCE_S


def age(*paths: Path, by_s: int = 3600) -> None:
    """Make files and folders look as if they had been at rest."""
    for path in paths:
        stamp = path.stat().st_mtime - by_s
        os.utime(path, (stamp, stamp))


class Data:
    """A small tree at rest, its cache, and a count of its scans."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "data"
        self.cache = tmp_path / "cache"
        self.spec = ImageFolder(str(self.root))
        self.scans = 0
        for name in ("a/1.jpg", "a/deep/2.jpg", "b/3.jpg"):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode())
        self.rest()

    def rest(self) -> None:
        age(self.root, *(path for path in self.root.rglob("*") if path.is_dir()))

    def build(self) -> Listing:
        return build_index(self.spec, self.cache, self._report)

    def _report(self, _count: int) -> None:
        self.scans += 1


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setattr(progress, "_PERIOD_S", PATIENCE_S)  # each scan reports once, however long it takes
    return Data(tmp_path)


def test_an_unchanged_tree_is_not_scanned_again(data: Data) -> None:
    first = data.build()
    assert data.build() == first
    assert data.scans == 1


@pytest.mark.parametrize("name", ["a/4.jpg", "a/deep/4.jpg", "c/4.jpg"])
def test_a_new_file_anywhere_is_seen(data: Data, name: str) -> None:
    first = data.build()
    (data.root / name).parent.mkdir(exist_ok=True)
    (data.root / name).touch()
    second = data.build()
    assert second.samples == first.samples + 1
    assert second.digest != first.digest
    assert second.path != first.path


def test_a_removed_file_and_a_removed_folder_are_seen(data: Data) -> None:
    data.build()
    (data.root / "a/deep/2.jpg").unlink()
    assert data.build().samples == 2
    data.rest()
    assert data.build().samples == 2
    (data.root / "a/deep").rmdir()
    assert data.build().samples == 2
    assert data.scans == 4


def test_open_sources_keep_the_state_that_they_began_on(data: Data) -> None:
    first = data.build()
    source = open_source(data.spec, first.path)
    (data.root / "a/0.jpg").touch()
    data.build()
    names = ["a/1.jpg", "a/deep/2.jpg", "b/3.jpg"]
    for state in (source, open_source(data.spec, first.path)):
        assert [state.name(i) for i in range(len(state))] == names


def test_a_tree_changed_just_before_its_scan_is_scanned_again(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_COARSEST_TIME_NS", 600 * 10**9)  # a busy machine comes to its scan late
    os.utime(data.root / "b")
    first = data.build()
    assert data.build() == first
    assert data.scans == 2
    data.rest()
    data.build()
    data.build()
    assert data.scans == 3


def test_a_folder_from_the_future_is_trusted(data: Data) -> None:
    age(data.root / "b", by_s=-100_000)
    data.build()
    data.build()
    assert data.scans == 1


@pytest.mark.parametrize("size", [0, 30, -1])
def test_a_cut_off_index_is_built_again(data: Data, size: int) -> None:
    first = data.build()
    os.truncate(first.path, size if size >= 0 else first.path.stat().st_size - 1)
    assert data.build() == first
    assert data.scans == 2
    assert open_source(data.spec, first.path).read(0)["image"] == b"a/1.jpg"


def test_a_damaged_index_is_built_again_and_never_served(data: Data) -> None:
    first = data.build()
    whole = first.path.read_bytes()
    container = Container(first.path)
    files, times = (container._start + container._place(name)[0] for name in ("files", "watched_mtimes_ns"))
    for scans, place in enumerate((files, files + 9, times, whole.index(b"a/deep/")), 2):
        bent = bytearray(whole)
        bent[place] ^= 1
        first.path.write_bytes(bent)
        with pytest.raises(BrokenContainerError, match=r"checksum.*attach again"):  # as a worker would
            open_source(data.spec, first.path).read(0)
        assert data.build() == first
        assert data.scans == scans
        assert first.path.read_bytes() == whole


def test_damage_that_only_listing_others_meets_is_mended(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("".join(f"{number}.jpg {number % 7}\n" for number in range(5000)))
    age(tmp_path / "l.txt")
    photos, cache = FileList(str(tmp_path / "l.txt")), tmp_path / "cache"
    first = build_index(photos, cache)
    chosen = build_index(Filter(photos, labels=[3]), cache)
    chosen.path.unlink()
    whole = first.path.read_bytes()
    container = Container(first.path)
    bent = bytearray(whole)
    bent[container._start + container._place("files")[0] + 20 * 4000 + 8] ^= 1  # the label of a sample
    first.path.write_bytes(bent)
    assert build_index(photos, cache) == first  # nothing of that page is asked for
    assert first.path.read_bytes() == bent
    assert build_index(Filter(photos, labels=[3]), cache) == chosen
    assert first.path.read_bytes() == whole


def test_damage_that_opening_meets_is_mended(tmp_path: Path) -> None:
    photos, cache = SyntheticImages(40, size=(64, 64), num_classes=4), tmp_path / "cache"
    first = build_index(photos, cache)
    whole = first.path.read_bytes()
    at = whole.rindex(Container(first.path).section("ends"))  # which opening reads
    first.path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    gc.disable()  # as in a worker, which would keep the file until other jobs come
    try:
        with pytest.raises(SourceError, match="damaged") as caught:
            open_source(photos, first.path)
        del caught
        assert os.fspath(first.path) not in {os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()}
    finally:
        gc.enable()
    build_index(Filter(photos, labels=[3]), cache)
    assert first.path.read_bytes() == whole


def test_a_new_index_survives_what_is_said_of_the_old_one(data: Data) -> None:
    info = data.build()
    source, whole = open_source(data.spec, info.path), info.path.read_bytes()
    os.truncate(info.path, 0)
    assert data.build() == info
    with pytest.raises(BrokenContainerError) as caught:
        source.read(0)
    assert discard(caught.value, data.cache) == info.path
    assert info.path.read_bytes() == whole


def test_an_index_cut_while_in_use_is_an_error_and_no_crash(data: Data) -> None:
    info = data.build()
    source = open_source(data.spec, info.path)
    assert source.name(2) == "b/3.jpg"
    os.truncate(info.path, 4096 if info.path.stat().st_size > 4096 else 0)
    for ask in (source.read, source.label, source.name):
        with pytest.raises(BrokenContainerError, match="cut short while it is in use"):
            ask(0)
    assert data.build() == info  # and the next one who asks has a whole one
    assert open_source(data.spec, info.path).label(2) == 1


def test_a_foreign_file_in_the_place_of_an_index_is_replaced(data: Data) -> None:
    first = data.build()
    first.path.write_bytes(b"\xff\xd8" * 5000)
    assert data.build() == first
    assert data.scans == 2


def test_a_moved_dataset_has_equal_content_and_a_new_identity(data: Data) -> None:
    first = data.build()
    moved = data.root.rename(data.root.with_name("moved"))
    second = build_index(ImageFolder(str(moved)), data.cache)
    assert second.content_digest == first.content_digest
    assert second.digest != first.digest


def test_a_dataset_that_is_gone_is_an_error_though_cached(data: Data) -> None:
    data.build()
    data.root.rename(data.root.with_name("moved"))
    with pytest.raises(SourceError, match="does not exist"):
        data.build()


def test_a_list_is_read_again_when_its_time_or_its_size_changes(tmp_path: Path) -> None:
    path = tmp_path / "l.txt"
    spec = FileList(str(path))
    scans: list[int] = []

    def build(text: str) -> Listing:
        path.write_text(text)
        os.utime(path, (1e9, 1e9))
        return build_index(spec, tmp_path / "cache", scans.append)

    first = build("a.jpg 1\n")
    assert build("a.jpg 1\n") == first
    assert len(scans) == 1
    assert build("a.jpg 12\n").num_classes == 13
    os.utime(path, (1e9, 1e9 + 1))
    build_index(spec, tmp_path / "cache", scans.append)
    assert len(scans) == 3


def test_an_index_of_another_dataset_is_not_opened(data: Data, tmp_path: Path) -> None:
    info = data.build()
    others: list[SourceSpec] = [ImageFolder("/other"), FileList("/other"), SyntheticImages(3)]
    for other in others:
        with pytest.raises(SourceError, match="belongs to another dataset"):
            open_source(other, info.path)
    with pytest.raises(SourceError, match="cannot open the index"):
        open_source(data.spec, tmp_path / "none.idx")
    os.truncate(info.path, 100)
    with pytest.raises(SourceError, match="attach again"):
        open_source(data.spec, info.path)


BUILD = """
import sys
from pathlib import Path
from prepserver.pipeline.sources import ImageFolder
from prepserver.source import build_index, open_source, reader
reader._COARSEST_TIME_NS = 10**18  # just changed: every call scans and writes
spec = ImageFolder(sys.argv[1])
for _ in range(20):
    info = build_index(spec, Path(sys.argv[2]))
    source = open_source(spec, info.path)
    assert [source.name(i) for i in range(len(source))] == ["a/1.jpg", "a/deep/2.jpg", "b/3.jpg"]
print(info.digest)
"""


def test_processes_that_build_at_once_agree_and_leave_one_file(data: Data) -> None:
    command = [sys.executable, "-c", BUILD, str(data.root), str(data.cache)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert digests == {data.build().digest + "\n"}
    assert len(os.listdir(data.cache)) == 1


NAMES = st.binary(min_size=1, max_size=6).map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_"))
FOLDERS = st.lists(NAMES, max_size=3).map(lambda parts: b"".join(part + b"/" for part in parts))
FILES = st.lists(st.tuples(FOLDERS, NAMES, st.integers(0, 2**63 - 1)), min_size=1, max_size=20)


@settings(max_examples=60)
@given(files=FILES)
def test_any_table_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[bytes, bytes, int]]
) -> None:
    table = FileTable()
    for folder, name, label in files:
        table.add(folder + name, label)
    path = tmp_path_factory.mktemp("index") / "x.idx"
    meta, sections = table.contents(["\udcff"])
    write_container(path, meta | {"sizes": [], "mtimes_ns": []}, sections)
    source = FileSource(Container(path), None, ANYWHERE)
    assert source.classes() == ["\udcff"]
    back = [(os.fsencode(source.name(i)), source.label(i)) for i in range(len(source))]
    assert back == [(folder + name, label) for folder, name, label in files]


@given(files=FILES)
def test_the_digest_tells_tables_apart(files: list[tuple[bytes, bytes, int]]) -> None:
    def digest(rows: list[tuple[bytes, bytes, int]], classes: list[str]) -> str:
        table = FileTable()
        for folder, name, label in rows:
            table.add(folder + name, label)
        return table.digest(classes)

    folder, name, label = files[-1]
    changed = [(folder + b"x/", name, label), (folder, name + b"x", label), (folder, name, label ^ 1)]
    digests = {digest([*files[:-1], row], ["a"]) for row in [*changed, files[-1]]}
    digests |= {digest(files, ["b"]), digest([*files, files[-1]], ["a"])}
    assert len(digests) == 6
    assert digest(list(files), ["a"]) in digests


def test_an_index_takes_less_than_60_bytes_a_file(tmp_path: Path) -> None:
    table = FileTable()
    for i in range(20_000):
        table.add(b"n%08d/n%08d_%05d.JPEG" % (i // 100, i // 100, i), i // 100)
    assert sum(section.nbytes for section in table.sections().values()) < 60 * 20_000
