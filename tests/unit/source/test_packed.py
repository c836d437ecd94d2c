from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given
from hypothesis import strategies as st

from prepserver.pack.report import Report
from prepserver.pack.run import Options, pack
from prepserver.pack.shards import ShardWriter
from prepserver.pack.transcode import Transcoder
from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import ImageFolder, Packed, TextLines, source_from_wire
from prepserver.protocol.packed import BrokenRecordError, IndexedScan, kept_record, pixels_record
from prepserver.source import Listing, SampleError, Source, SourceError, build_index, open_source
from prepserver.source.container import BrokenContainerError, Container, write_container
from prepserver.source.packed_values import from_bytes, to_bytes
from prepserver.source.readers.packed import columns_meta
from tests.support.leaks import descriptors
from tests.support.photos import jpeg, pixels, saved

COUNT = 30


class Dataset:
    """A packed dataset of thirty samples in several shards, the last one a PNG."""

    def __init__(self, tmp_path: Path) -> None:
        self.files: list[bytes] = []
        for index in range(COUNT):
            path = tmp_path / "data" / "ab"[index // 15] / f"{index:02d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.files.append(jpeg(60, 90, seed=index) if index < COUNT - 1 else saved(pixels(60, 90, index), "PNG"))
            path.write_bytes(self.files[-1])
        self.root = tmp_path / "packed"
        options = Options(Transcoder(False), shard_bytes=60_000)
        self.summary = pack(ImageFolder(str(tmp_path / "data")), self.root, options, Report())
        self.spec = Packed(str(self.root))
        self.cache = tmp_path / "cache"

    def index(self) -> Listing:
        return build_index(self.spec, self.cache)

    def open(self) -> Source:
        return open_source(self.spec, self.index().path)

    @property
    def shards(self) -> list[Path]:
        return sorted(self.root.glob("shard-*"))


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(tmp_path)


def test_every_sample_is_there_in_any_order(dataset: Dataset) -> None:
    source = dataset.open()
    assert len(dataset.shards) > 1
    for index in reversed(range(COUNT)):
        sample = source.read(index)
        assert (sample["label"], source.name(index)) == (index // 15, f"{'ab'[index // 15]}/{index:02d}.jpg")
        if isinstance(sample["image"], IndexedScan):
            difference = simplejpeg.decode_jpeg(sample["image"].jpeg).astype(int) - simplejpeg.decode_jpeg(
                dataset.files[index]
            )
            assert np.abs(difference).mean() < 2
        else:
            assert index == COUNT - 1
            assert sample["image"] == dataset.files[index]
    assert source.classes() == ["a", "b"]
    for index in (-1, COUNT):
        with pytest.raises(IndexError):
            source.read(index)


def test_the_index_is_the_datasets_own_and_the_cache_stays_empty(dataset: Dataset) -> None:
    info = dataset.index()
    assert info.path.parent == dataset.root
    assert (info.samples, info.num_classes) == (COUNT, 2)
    assert not dataset.cache.exists()


def test_a_moved_dataset_is_equal_content_and_another_source(dataset: Dataset) -> None:
    before = dataset.index()
    moved = dataset.root.rename(dataset.root.with_name("moved"))
    after = build_index(Packed(str(moved)), dataset.cache)
    assert after.content_digest == before.content_digest
    assert after.digest != before.digest
    assert open_source(Packed(str(moved)), after.path).read(3)["label"] == 0


def test_it_lies_where_its_shards_lead(dataset: Dataset, tmp_path: Path) -> None:
    assert dataset.index().places == (str(dataset.root),)
    shard = max(dataset.root.glob("shard-*"))
    (tmp_path / "other disk").mkdir()
    shard.rename(tmp_path / "other disk/shard")
    shard.symlink_to(tmp_path / "other disk/shard")
    assert dataset.index().places == (str(dataset.root), str(tmp_path / "other disk"))


def test_a_flipped_bit_in_a_head_is_bad_and_names_the_shard(dataset: Dataset) -> None:
    source = dataset.open()
    data = bytearray(dataset.shards[0].read_bytes())
    data[20] ^= 1
    dataset.shards[0].write_bytes(data)
    with pytest.raises(SampleError, match=r"shard-00000\.packed is damaged at 0") as bad:
        source.read(0)
    assert str(dataset.root) not in bad.value.reason
    assert source.read(1)["label"] == 0


def test_no_flipped_bit_of_a_shard_gives_another_sample(dataset: Dataset) -> None:
    source, rng = dataset.open(), random.Random(1)
    whole = [bytes(path.read_bytes()) for path in dataset.shards]
    good = [source.read(index) for index in range(COUNT)]
    refused = 0
    for _ in range(300):
        number = rng.randrange(len(whole))
        bent = bytearray(whole[number])
        bent[rng.randrange(len(bent))] ^= 1 << rng.randrange(8)
        dataset.shards[number].write_bytes(bent)
        for index in range(COUNT):
            try:
                assert source.read(index) == good[index]
            except SampleError as error:
                refused += error.reason.startswith(f"shard-{number:05d}.packed is damaged at ")
        dataset.shards[number].write_bytes(whole[number])
    assert refused == 300  # records lie without gaps: each flip was in one


def test_a_shard_cut_under_a_worker_is_bad_and_no_crash(dataset: Dataset) -> None:
    source = dataset.open()
    source.read(0)
    os.truncate(dataset.shards[0], 1000)
    with pytest.raises(SampleError, match=r"only \d+ of its \d+ bytes exist"):
        source.read(1)
    os.truncate(dataset.shards[0], 0)
    with pytest.raises(SampleError, match="only 0 of"):
        source.read(0)


@pytest.mark.parametrize("loss", ["cut", "gone", "swapped"])
def test_a_changed_shard_stops_a_dataset_from_being_attached(dataset: Dataset, loss: str) -> None:
    if loss == "cut":
        os.truncate(dataset.shards[1], 1000)
    elif loss == "gone":
        dataset.shards[1].unlink()
    else:
        dataset.shards[1].write_bytes(dataset.shards[0].read_bytes() + b"\0")
    with pytest.raises(SourceError, match=r"shard-00001\.packed"):
        dataset.index()


def test_a_worker_refuses_samples_of_another_shard_of_the_name(dataset: Dataset) -> None:
    source = dataset.open()
    os.truncate(dataset.shards[1], 1000)
    reasons: list[str] = []
    for index in range(COUNT):
        try:
            source.read(index)
        except SampleError as error:
            reasons.append(error.reason)
    assert 0 < len(reasons) < COUNT
    assert all(reason.startswith("shard-00001.packed has 1000 bytes") for reason in reasons)


def test_a_record_of_another_dataset_in_its_place_is_refused(dataset: Dataset) -> None:
    source = dataset.open()
    size = dataset.shards[0].stat().st_size
    shard = bytearray(dataset.shards[0].read_bytes())
    first = source.read(0)["image"]
    assert isinstance(first, IndexedScan)
    from prepserver.transform.segments import record_of

    other = record_of(0, bytes(first.jpeg[:-3]) + bytes((first.jpeg[-3] ^ 1,)) + b"\xff\xd9", 1)
    assert other is not None
    shard[: len(other)] = other
    dataset.shards[0].write_bytes(shard)
    assert dataset.shards[0].stat().st_size == size
    with pytest.raises(SampleError, match="another record lies there"):
        dataset.open().read(0)


@pytest.mark.parametrize("at", [10, 40, -1])
def test_a_damaged_index_is_refused(dataset: Dataset, at: int) -> None:
    path = dataset.index().path
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(SourceError, match="damaged"):
        dataset.index()
    with pytest.raises(SourceError, match="damaged"):  # as a worker would
        open_source(dataset.spec, path)


def test_a_damaged_row_of_the_index_is_no_sample(dataset: Dataset) -> None:
    path = dataset.index().path
    data = bytearray(path.read_bytes())
    data[-300] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(BrokenContainerError, match=r"damaged.*run the same prepserver pack again"):
        open_source(dataset.spec, path).read(0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda meta: meta.update(n=COUNT + 10), f"it counts {COUNT + 10} samples and lists {COUNT}"),
        (lambda meta: meta.update(n=COUNT - 10), f"it counts {COUNT - 10} samples and lists {COUNT}"),
        (lambda meta: meta.pop("n"), f"it counts None samples and lists {COUNT}"),
        (lambda meta: meta.pop("classes"), "KeyError: 'classes'"),
        (lambda meta: meta.pop("pack_digest"), "KeyError: 'pack_digest'"),
        (lambda meta: meta.update(shards=3), "TypeError: "),
        (lambda meta: meta.update(kinds={"image": 3}), "kinds"),
    ],
)  # fmt: skip
def test_an_index_that_contradicts_itself_is_refused(dataset: Dataset, change: Any, said: str) -> None:
    """Its checksums are right: another program may have written it."""
    path = dataset.index().path
    written = Container(path)
    change(written.meta)
    write_container(path, written.meta, {name: memoryview(written.section(name)) for name in written._sections})
    with pytest.raises(SourceError) as refused:
        dataset.index()
    assert str(path) in str(refused.value)
    assert said in str(refused.value)


def test_a_cut_index_is_refused(dataset: Dataset) -> None:
    path = dataset.index().path
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(SourceError, match="damaged"):
        dataset.index()


def test_folders_that_hold_no_packed_dataset_say_what_to_do(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, text in (("empty", "make one with prepserver pack"), ("nothing", "does not exist")):
        with pytest.raises(SourceError, match=text):
            build_index(Packed(str(tmp_path / name)), dataset.cache)
    dataset.index().path.unlink()
    with pytest.raises(SourceError, match="not finished"):
        dataset.index()


def test_more_shards_than_may_be_open_are_read_all_the_same(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepserver.source.shards._OPEN_AT_MOST", 1)
    before = descriptors()
    source = dataset.open()
    mapped = len(os.listdir("/proc/self/fd"))
    for index in (0, COUNT - 1, 1, COUNT - 2):
        assert source.read(index)["label"] == index // 15
    assert len(os.listdir("/proc/self/fd")) == mapped + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_spec_travels_and_needs_an_absolute_path() -> None:
    assert source_from_wire(Packed("/data//packed/").to_wire()) == Packed("/data/packed")
    with pytest.raises(SpecError, match="absolute"):
        source_from_wire({"source": "Packed", "root": "packed"})


def test_the_stamp_of_a_sample_is_of_its_record(dataset: Dataset) -> None:
    source = dataset.open()
    stamps = [source.stamp(index) for index in range(COUNT)]
    assert len(set(stamps)) == COUNT
    assert stamps == [dataset.open().stamp(index) for index in range(COUNT)]


@given(st.binary(max_size=60), st.sampled_from([kinds.Text(), kinds.Array(), kinds.Scalar(), kinds.Tokens()]))
@example(b"0a\0\0" + bytes(4), kinds.Array())  # numpy warns of this name of a type
def test_no_bytes_of_a_column_do_more_than_be_refused(data: bytes, kind: kinds.Kind) -> None:
    with contextlib.suppress(BrokenRecordError):
        from_bytes(memoryview(data), kind)
    whole = to_bytes(np.arange(6, dtype=np.float32).reshape(2, 3), kinds.Array())
    for at in range(min(len(data), len(whole))):
        with contextlib.suppress(BrokenRecordError):
            from_bytes(memoryview(whole[:at] + data[: at + 1] + whole[at + 1 :]), kinds.Array())
    assert from_bytes(memoryview(whole), kinds.Array()).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize(
    ("kind", "good", "other"),
    [
        (kinds.Scalar("int64"), np.int64(1), np.arange(3)),
        (kinds.Scalar("int64"), np.int64(1), np.float32(1)),
        (kinds.Array((2,)), np.zeros(2, np.float32), np.zeros(3, np.float32)),
        (kinds.Array(), np.zeros(2, np.float32), np.zeros(2)),
        (kinds.Tokens(), np.arange(3), np.int64(3)),
        (kinds.Label(), np.int64(1), np.uint8(1)),
        (kinds.Text(), "text", None),
    ],
    ids=str,
)
def test_what_is_of_another_kind_is_a_bad_sample(kind: kinds.Kind, good: Any, other: Any, tmp_path: Path) -> None:
    """Whoever wrote it, checksums and all: a row that cannot take it would end the job."""
    (tmp_path / "a.txt").write_text("1\n2\n")
    texts = TextLines(str(tmp_path / "a.txt"))
    (tmp_path / "packed").mkdir()
    writer = ShardWriter(tmp_path / "packed", 1 << 20, 1)
    writer.append(kept_record(0, to_bytes(good, kind)))
    pixels_of_one = pixels_record(1, (1, 1), "rgb", b"rgb")
    writer.append(pixels_of_one if other is None else kept_record(1, to_bytes(other, kind)))
    writer.finish()
    columns = {"label": kinds.Label(), "x": kind}
    source = open_source(texts, build_index(texts, tmp_path / "cache").path)
    writer.write_index(source, columns_meta(columns, ["x"]), {})
    spec = Packed(str(tmp_path / "packed"), columns=columns)
    packed = open_source(spec, build_index(spec, tmp_path / "cache").path)
    np.testing.assert_array_equal(packed.read(0)["x"], good)
    with pytest.raises(SampleError, match=r"shard-00000.packed is damaged at \d+: (it holds no|its record holds no x)"):
        packed.read(1)
