"""Objects in a real store on the loopback: the samples of files, what is said of faults, what is begun early."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from prepserver.pipeline import kinds
from prepserver.pipeline.ops import Tokenize
from prepserver.pipeline.sources import (
    BucketByLength,
    Csv,
    FileList,
    HuggingFace,
    ImageFolder,
    Packed,
    PackTokens,
    Parquet,
    SourceSpec,
    Tar,
    TextLines,
    TFRecord,
    Windows,
)
from prepserver.source import OutsideRootsError, SampleError, Source, SourceError, build_index, open_source
from prepserver.source.readers import windows
from prepserver.source.storage import remote
from prepserver.source.storage.remote import RemoteRead
from tests.support import datasets, texts
from tests.support.datasets import COUNT
from tests.support.object_store import SECRET, ObjectStore, end_reads, object_store
from tests.support.tf_records import file_of
from tests.support.tiny_images import jpeg, photo_tree
from tests.support.waiting import PATIENCE_S, wait_until

RETRIED_S = 6.0
"""A deadline for what is asked for again during half of it."""


@pytest.fixture(scope="module")
def bucket() -> Iterator[ObjectStore]:
    with object_store() as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", f"={SECRET}")
        yield store


@pytest.fixture
def deadline(bucket: ObjectStore) -> Iterator[Callable[[float], None]]:
    """Says how long reads may take from now on; those that have begun are forgotten, and end with the test."""
    links: list[remote.Link] = []

    def configure(deadline_s: float) -> None:
        remote.configure([f"{scheme}://{bucket.bucket}" for scheme in ("s3", "az")] + [bucket.web], deadline_s)
        links.extend([remote._link] if remote._link is not None else [])
        remote._link = None

    yield configure
    bucket.mend()
    for link in [*links, remote._link]:
        remote._link = link
        end_reads()


@pytest.fixture
def store(bucket: ObjectStore, deadline: Callable[[float], None]) -> ObjectStore:
    """The bucket, which no other test reads from; a busy machine may answer late."""
    bucket.asked.clear()
    deadline(PATIENCE_S)
    return bucket


@pytest.fixture
def photos(store: ObjectStore, tmp_path: Path) -> tuple[ImageFolder, ImageFolder]:
    """The same images on disk and in the bucket."""
    here = photo_tree(tmp_path / "tree", COUNT)
    return here, ImageFolder(store.upload(tmp_path / "tree", tmp_path.name))


def opened(spec: SourceSpec, tmp_path: Path) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


@pytest.mark.parametrize("spec", [ImageFolder("az://data/x"), TextLines("az://data/x")])
def test_settings_that_are_wrong_are_told_without_them(spec: SourceSpec, store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="environment has wrong settings") as caught:
        build_index(spec, tmp_path / "cache")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "requests"),
    [
        *((datasets.parquet, 3), (datasets.embeddings, 3), (datasets.records, 1), (datasets.texts, 1)),
        *((datasets.npz, 1), (datasets.coco, COUNT)),
    ],
)
def test_what_was_begun_early_is_what_is_read(
    made: datasets.Format, requests: int, store: ObjectStore, tmp_path: Path
) -> None:
    """What lies side by side is one request."""
    spec = made(tmp_path)(store.upload(tmp_path, tmp_path.name))
    source = opened(spec, tmp_path / "here")
    store.asked.clear()
    source.prefetch(range(COUNT))
    assert len(remote.link()._begun) == requests
    for index in range(COUNT):
        source.read(index)
    assert len(store.asked) == requests
    assert not remote.link()._begun


@pytest.mark.parametrize(
    ("made", "part"), [(datasets.parquet, "part-1.parquet"), (datasets.table, "photos/3.jpg"), (datasets.npy, "x.npy")]
)
def test_a_part_that_fails_is_named_and_tried_again(
    made: datasets.Format, part: str, store: ObjectStore, tmp_path: Path
) -> None:
    source = opened(made(tmp_path)(store.upload(tmp_path, tmp_path.name)), tmp_path / "here")
    index = len(source) - 1 if made is datasets.parquet else 3
    store.faults[part] = 403
    source.prefetch([index])
    with pytest.raises(SampleError, match=rf"s3://data/{tmp_path.name}/{part}: the store answers 403"):
        source.read(index)
    store.faults.clear()
    assert source.read(index)


def test_an_object_whose_name_has_an_empty_part_is_named(store: ObjectStore, tmp_path: Path) -> None:
    """As those that a prefix with a slash too many leaves; obstore lists nothing beside it."""
    for name in ("cats/1.jpg", "cats//2.jpg"):
        store.put(f"odd/{name}", b"x")
    with pytest.raises(SourceError, match=r's3://data/odd: an object below it .*, "odd/cats//2.jpg": .*; rename it'):
        build_index(ImageFolder("s3://data/odd"), tmp_path / "cache")
    assert not remote.link()._down


def test_a_request_that_fails_spoils_no_other_samples(store: ObjectStore, tmp_path: Path) -> None:
    """Samples that lie side by side are one request; after it has failed, each is asked for by itself."""
    source = opened(datasets.tars(tmp_path)(store.upload(tmp_path, tmp_path.name)), tmp_path / "here")
    store.faults["0.tar"] = 403
    source.prefetch([0, 1, 2])
    begun = remote.link()._begun
    wait_until(lambda: all(each.call.answer for each in begun.values()), why=lambda: str(begun))
    with pytest.raises(SampleError, match=r"/0\.tar: the store answers 403"):
        source.read(0)
    store.faults.clear()
    assert source.read(1)
    assert source.read(2)


def test_images_of_a_table_begin_when_its_lines_are_there(store: ObjectStore, tmp_path: Path) -> None:
    spec = datasets.table(tmp_path)(store.upload(tmp_path, tmp_path.name))
    source = opened(spec, tmp_path / "here")
    store.asked.clear()
    source.prefetch([0, 1, 2, 3])
    begun = remote.link()._begun  # the lines, and the images too if the lines were there at once
    wait_until(lambda: all(each.call.answer for each in begun.values()), why=lambda: str(begun))
    assert "all.csv" in store.asked[0]
    source.read(0)
    wait_until(lambda: len(store.asked) == 5, why=lambda: str(store.asked))
    assert [source.read(index)["photo"] for index in (2, 1, 3)] == [jpeg(2), jpeg(1), jpeg(3)]
    assert len(store.asked) == 5
    assert not remote.link()._begun


def test_compressed_records_are_begun_as_pieces_of_their_file(store: ObjectStore, tmp_path: Path) -> None:
    pytest.importorskip("indexed_gzip", reason="compressed TFRecords need indexed-gzip")
    images = [np.random.default_rng(n).bytes(300_000) for n in range(12)]
    plain = file_of([{"image": [image], "label": [n]} for n, image in enumerate(images)])
    store.put(f"{tmp_path.name}/a", gzip.compress(plain))
    source = opened(TFRecord(f"s3://{store.bucket}/{tmp_path.name}/a"), tmp_path)
    store.asked.clear()
    source.prefetch([3, 4, 11])
    begun = len(remote.link()._begun)
    assert [source.read(index)["image"] for index in (3, 4, 11)] == [images[3], images[4], images[11]]
    assert 2 <= begun == len(store.asked) <= 4
    store.faults[tmp_path.name] = 403
    with pytest.raises(SampleError, match=f"s3://data/{tmp_path.name}/a: the store answers 403"):
        source.read(7)


def test_compressed_records_are_downloaded_once(store: ObjectStore, tmp_path: Path) -> None:
    pytest.importorskip("indexed_gzip", reason="compressed TFRecords need indexed-gzip")
    image = np.random.default_rng(1).bytes(9 << 20)  # a listing asks for 8 MiB at a time
    store.put(f"{tmp_path.name}/a", gzip.compress(file_of([{"image": [image], "label": [1]}]), 1))
    source = opened(TFRecord(f"s3://{store.bucket}/{tmp_path.name}/a"), tmp_path)
    assert len(store.asked) == 2
    assert source.read(0)["image"] == image


def test_a_store_that_fails_spoils_no_listing(
    store: ObjectStore, deadline: Callable[[float], None], tmp_path: Path
) -> None:
    """Annotations that are missing make a bad sample, but those that cannot be had just now are an error."""
    spec = datasets.voc(tmp_path)(store.upload(tmp_path, tmp_path.name))
    store.faults["Annotations/3.xml"] = 503
    deadline(RETRIED_S)
    with pytest.raises(SourceError, match=r"cannot read the annotations s3://data/.*/3\.xml: .*503"):
        build_index(spec, tmp_path / "cache")
    deadline(PATIENCE_S)
    store.faults["Annotations/3.xml"] = 404
    source = opened(spec, tmp_path)
    with pytest.raises(SampleError, match=r"3\.xml: .*404"):
        source.read([source.name(index) for index in range(COUNT)].index("JPEGImages/3.jpg"))
    store.faults.clear()
    again = opened(spec, tmp_path)
    assert [again.read(index)["image"] for index in range(COUNT)] != []


@pytest.mark.parametrize("kept", [windows.KEPT_BYTES, 0])
def test_rows_of_windows_are_begun_together(
    kept: int, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "KEPT_BYTES", kept)
    (tmp_path / "a.csv").write_text("s,x\n" + "".join(f"{k // 50},{k}\n" for k in range(100)))
    columns = {"s": kinds.Text(), "x": kinds.Scalar()}
    bases = store.upload(tmp_path, tmp_path.name), tmp_path
    there, here = (opened(Windows(Csv(f"{base}/a.csv", columns), {"x": [-1, 0]}, "s"), tmp_path) for base in bases)
    for indices in (range(40), range(30, 50)):
        store.asked.clear()
        there.prefetch(indices)
        for index in indices:
            np.testing.assert_equal(there.read(index), here.read(index))
        assert len(store.asked) == 1 if kept else len(store.asked) < len(indices) + 2
    assert not there.read_block([0], {})


@pytest.mark.parametrize("kind", [BucketByLength, PackTokens])
def test_texts_that_cannot_be_had_just_now_spoil_no_listing(
    kind: type, store: ObjectStore, deadline: Callable[[float], None], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("the a\nb\n")
    lines = TextLines(f"{store.upload(tmp_path, tmp_path.name)}/a.txt")
    build_index(lines, tmp_path / "cache")
    more = () if kind is BucketByLength else (Tokenize(texts.vocabulary(tmp_path / "words")), 8)
    store.faults["a.txt"] = "cut"
    deadline(RETRIED_S)
    with pytest.raises(SourceError, match=r"cannot read .*/a\.txt, .*: the store cannot be reached"):
        build_index(kind(lines, *more), tmp_path / "cache")


@pytest.mark.parametrize("kind", [BucketByLength, PackTokens])
def test_texts_are_counted_several_at_once(
    kind: type, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("the a\n")
    lines = TextLines(f"{store.upload(tmp_path, tmp_path.name)}/{{a,b}}.txt")
    build_index(lines, tmp_path / "cache")
    more = () if kind is BucketByLength else (Tokenize(texts.vocabulary(tmp_path / "words")), 8)
    store.asked.clear()
    both = threading.Barrier(2)

    def answered_when_both_are_asked_for(_path: str) -> None:
        if store.asked:
            both.wait(PATIENCE_S)

    monkeypatch.setattr(store, "fault", answered_when_both_are_asked_for)
    build_index(kind(lines, *more), tmp_path / "cache")
    assert len(store.asked) == 2


def test_objects_that_a_list_names_are_as_old_as_the_list(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"{store.web}/a.jpg 0\n{store.web}/b.jpg 1\n")
    first, same = (opened(FileList(tmp_path / "list.txt"), tmp_path).stamp(0) for _ in range(2))
    assert first == same
    os.utime(tmp_path / "list.txt", (1e9, 1e9))
    assert opened(FileList(tmp_path / "list.txt"), tmp_path).stamp(0) != first


def test_a_list_that_was_written_again_is_read_once_more(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(f"{tmp_path.name}/list.txt", f"{store.web}/a.jpg 0\n".encode())
    spec = FileList(f"s3://{store.bucket}/{tmp_path.name}/list.txt")
    first = opened(spec, tmp_path).stamp(0)
    monkeypatch.setattr(remote, "version_of", lambda _meta: 7)  # of the same bytes: most stores say another then
    assert opened(spec, tmp_path).stamp(0) != first
    store.asked.clear()
    opened(spec, tmp_path)
    assert not store.asked


@pytest.mark.parametrize("kind", [kinds.Image(), kinds.Bytes()])
def test_cells_lead_nowhere_else(kind: kinds.Kind, store: ObjectStore, tmp_path: Path) -> None:
    root = f"s3://{store.bucket}/{tmp_path.name}"
    store.put(f"{tmp_path.name}/1.jpg", b"one")
    names = ["1.jpg", f"{root}/1.jpg", "s3://other/1.jpg", "/1.jpg", "../1.jpg", f"{root}2/1.jpg"]
    (tmp_path / "t.csv").write_text("".join(f"{name}\n" for name in names))
    source = opened(Csv(tmp_path / "t.csv", {"x": kind}, header=["x"], root=root), tmp_path)
    assert source.reads_ahead
    source.prefetch(range(6))
    assert [source.read(index)["x"] for index in range(2)] == [b"one", b"one"]
    for index in range(2, 6):
        with pytest.raises(SampleError, match=r"below"):
            source.read(index)
    assert len(store.asked) == 1


def test_a_list_on_disk_names_images_anywhere(store: ObjectStore, tmp_path: Path) -> None:
    for key in ("a b.jpg", "b.jpg"):
        store.put(f"list/{key}", key.encode())
    (tmp_path / "c.jpg").write_bytes(b"c.jpg")
    names = [f"s3://{store.bucket}/list/a b.jpg", f"{store.web}/list/a%20b.jpg", f"{store.web}/list/b.jpg", "c.jpg"]
    (tmp_path / "list.csv").write_text("".join(f"{name},{label}\n" for label, name in enumerate(names)))
    source = opened(FileList(tmp_path / "list.csv"), tmp_path)
    source.prefetch([1, 2])
    assert [source.read(k)["image"] for k in range(4)] == [b"a b.jpg", b"a b.jpg", b"b.jpg", b"c.jpg"]
    assert [source.name(k) for k in range(4)] == names


def test_an_unchanged_bucket_is_listed_again_and_kept(
    photos: tuple[ImageFolder, ImageFolder], store: ObjectStore, tmp_path: Path
) -> None:
    found: list[int] = []
    first = build_index(photos[1], tmp_path / "cache", found.append)
    made_ns = first.path.stat().st_mtime_ns
    assert build_index(photos[1], tmp_path / "cache") == first
    assert first.path.stat().st_mtime_ns == made_ns
    assert found[-1] == COUNT
    store.put(f"{tmp_path.name}/dogs/more.jpg", jpeg(50))
    assert build_index(photos[1], tmp_path / "cache").samples == COUNT + 1


def test_a_changed_object_is_an_error_and_another_dataset(
    photos: tuple[ImageFolder, ImageFolder], store: ObjectStore, tmp_path: Path
) -> None:
    info = build_index(photos[1], tmp_path / "cache")
    source = open_source(photos[1], info.path)
    url = f"s3://{store.bucket}/{tmp_path.name}/{source.name(2)}"
    store.put(url.removeprefix(f"s3://{store.bucket}/"), jpeg(60))
    with pytest.raises(SampleError) as caught:
        source.read(2)
    assert caught.value.reason == f"{url}: it has changed since the dataset was listed"
    again = build_index(photos[1], tmp_path / "cache")
    assert again.digest != info.digest
    assert again.content_digest == info.content_digest
    assert open_source(photos[1], again.path).read(2)["image"] == jpeg(60)


def test_a_changed_shard_is_an_error_and_listed_again(store: ObjectStore, tmp_path: Path) -> None:
    spec = datasets.tars(tmp_path)(store.upload(tmp_path, tmp_path.name))
    info = build_index(spec, tmp_path / "cache")
    source = open_source(spec, info.path)
    store.put(f"{tmp_path.name}/0.tar", (tmp_path / "1.tar").read_bytes())
    with pytest.raises(SampleError, match=r"/0\.tar: it has changed"):
        source.read(1)
    assert source.read(COUNT)["label"] == 0
    assert build_index(spec, tmp_path / "cache").digest != info.digest


@pytest.mark.parametrize(
    ("fault", "reason", "deadline_s"),
    [
        (403, "answers 403 Forbidden", PATIENCE_S),
        (404, "answers 404 Not Found", PATIENCE_S),
        (500, "answers 500 Internal Server Error", RETRIED_S),
        ("never", "cannot be reached, or breaks off|no answer in", 1.0),
        ("cut", "cannot be reached, or breaks off", RETRIED_S),
        ("stall", "cannot be reached, or breaks off|no answer in", 1.0),
    ],
)
def test_a_broken_answer_is_a_bad_sample_named_by_its_url(
    fault: int | str, reason: str, deadline_s: float, photos: tuple[ImageFolder, ImageFolder], store: ObjectStore,
    deadline: Callable[[float], None], tmp_path: Path,
) -> None:  # fmt: skip
    source = opened(photos[1], tmp_path)
    store.faults[source.name(3)] = fault
    source.prefetch(range(COUNT))
    for index in (*range(3), *range(4, COUNT)):
        assert source.read(index)["image"] == jpeg(index)
    deadline(deadline_s)
    with pytest.raises(SampleError, match=rf"s3://data/.*{source.name(3)}: .*({reason})") as caught:
        source.read(3)
    assert SECRET not in str(caught.value.reason)


def test_a_slow_answer_is_waited_for(
    photos: tuple[ImageFolder, ImageFolder], store: ObjectStore, tmp_path: Path
) -> None:
    source = opened(photos[1], tmp_path)
    store.faults[source.name(0)] = 0.3
    assert source.read(0)["image"] == jpeg(0)


def test_nobody_waits_long_for_a_store_that_is_down(
    photos: tuple[ImageFolder, ImageFolder], store: ObjectStore, deadline: Callable[[float], None], tmp_path: Path
) -> None:
    source = opened(photos[1], tmp_path)
    store.faults[tmp_path.name] = "never"
    deadline(RETRIED_S)
    source.prefetch(range(COUNT - 1))
    for index in range(COUNT - 1):
        with pytest.raises(SampleError, match="s3://data"):
            source.read(index)
    with pytest.raises(SampleError, match="and nothing since"):
        source.read(COUNT - 1)
    # reads that are not waited for go on, so that the store is noticed when it answers again
    store.faults.clear()
    wait_until(lambda: _reads(source, 1), why=lambda: "the store answers and is taken for dead")


def _reads(source: Source, index: int) -> bool:
    try:
        return bool(source.read(index))
    except SampleError:
        return False


def test_reads_begin_before_they_are_needed_and_are_not_repeated(
    photos: tuple[ImageFolder, ImageFolder], store: ObjectStore, tmp_path: Path
) -> None:
    source = opened(photos[1], tmp_path)
    source.prefetch([1, 2, 1])
    wait_until(lambda: len(store.asked) == 2, why=lambda: str(store.asked))
    assert [source.read(k)["image"] for k in (1, 2, 1)] == [jpeg(1), jpeg(2), jpeg(1)]
    assert len(store.asked) == 2
    source.read(1)
    assert len(store.asked) == 3  # nothing is kept


def test_threads_end_with_what_reads_by_them(store: ObjectStore) -> None:
    store.put("small", b"it is")
    link = remote.Link()
    assert link.read(RemoteRead("s3://data/small"), 10) == b"it is"
    threads = link._reading._threads
    assert [thread.is_alive() for thread in threads] == [True]
    del link
    assert not threads[0].is_alive()


def test_a_process_ends_after_its_reads(store: ObjectStore) -> None:
    """A thread that comes back from obstore while Python ends would end the process by a signal."""
    store.put("slow", b"it is")
    store.faults["slow"] = 0.3
    script = """
import atexit
atexit.register(lambda: print(begun.call.answer))  # called after all that is registered below
from prepserver.source.storage import remote
remote.link().want([remote.RemoteRead("s3://data/slow")])
(begun,) = remote.link()._begun.values()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'it is'\n", "")


def test_what_is_held_is_bounded(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrived samples that nobody fetches are dropped."""
    monkeypatch.setattr(remote, "HELD_BYTES", 100)
    link = remote.link()
    store.put("small", bytes(40))
    wanted = [RemoteRead("s3://data/small", offset, 40 - offset) for offset in range(5)]
    link.want(wanted)
    assert len(link._begun) == 2
    assert [len(link.read(each, 100)) for each in wanted] == [40, 39, 38, 37, 36]
    assert not link._begun


def test_urls_outside_the_roots_are_never_asked_for(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(OutsideRootsError, match=r"\[sources\].*--root s3://other"):
        build_index(ImageFolder("s3://other/x"), tmp_path / "cache")
    with pytest.raises(OutsideRootsError):
        build_index(Tar("http://169.254.169.254/latest/meta-data"), tmp_path / "cache")
    (tmp_path / "list.txt").write_text(f"http://169.254.169.254/latest 0\n{store.web}.evil/x 1\n")
    source = opened(FileList(tmp_path / "list.txt"), tmp_path)
    source.prefetch([0, 1])
    for index in range(2):
        with pytest.raises(SampleError, match="outside the source roots"):
            source.read(index)
    assert not store.asked


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (ImageFolder("s3://data/nothing"), "no class folders in s3://data/nothing"),
        (Tar("s3://data/no.tar"), r"cannot read the shard s3://data/no\.tar: the store answers 404"),
        (HuggingFace("s3://data/no"), r"cannot read the dataset's file s3://data/no/state\.json: .*404"),
        (Packed("s3://data/no"), "s3://data/no holds no packed dataset"),
        (FileList("s3://data/no.csv"), "cannot read the list"),
        (Parquet("s3://data/no/*.parquet"), r"no file matches s3://data/no/\*\.parquet"),
        (Csv("s3://data/no.csv", {"x": kinds.Text()}), r"cannot read the file s3://data/no\.csv: .*404"),
    ],
)
def test_what_is_not_there_is_named(spec: SourceSpec, text: str, store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=text):
        build_index(spec, tmp_path / "cache")


def test_redirects_lead_only_to_hosts_that_are_named(
    store: ObjectStore, deadline: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("there", b"it is")
    moved = RemoteRead(f"{store.web}/moved")
    store.faults["moved"] = f"{store.web}/there"
    assert remote.link().get(moved) == b"it is"
    store.faults["moved"] = f"{store.web}/there".replace("127.0.0.1", "localhost")
    deadline(RETRIED_S)
    with pytest.raises(SampleError, match="redirected to a host that the server does not read"):
        remote.link().get(moved)
    assert store.asked[-1] == "/data/moved"
    monkeypatch.setenv(remote.ANY_REDIRECT, "any")
    assert remote.Link().get(moved) == b"it is"


def test_a_web_server_cannot_be_listed(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="FileList"):
        build_index(ImageFolder(f"{store.web}/x"), tmp_path / "cache")
    with pytest.raises(SourceError, match="by braces"):
        build_index(TextLines(f"{store.web}/[ab].txt"), tmp_path / "cache")


def test_without_obstore_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SourceError, match=r"pip install 'prepserver\[remote\]'"):
        remote.load()


def test_a_process_forked_from_one_that_reads_is_told_so(store: ObjectStore) -> None:
    """obstore would wait for ever for threads that were not forked."""
    link, pid = remote.link(), os.getpid()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "pid", pid + 1)
        with pytest.raises(SourceError, match="spawn"):
            remote.link()
