"""Rows have the same bytes with a cache and without one, whatever the cache holds, and whoever filled it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Picture

from prepserver.cache.store import Store
from prepserver.order import Shuffle, make_order
from prepserver.pipeline import kinds
from prepserver.pipeline.caching import head_of
from prepserver.pipeline.ops import (
    CenterCrop,
    ColorJitter,
    Grayscale,
    Normalize,
    Op,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns, images
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import Csv, ImageFolder, Mix, Parquet, Split, SyntheticImages, Take
from prepserver.source import Record, SampleError, Source, build_index, open_source
from prepserver.source.readers import parquet
from prepserver.transform import BadSample, RowMaker, SampleKey, after_head
from prepserver.worker import caching
from prepserver.worker.caching import Caching
from prepserver.worker.fill import BadRow, fill
from prepserver.worker.streams import Lane, Stream
from tests.golden import rows as golden
from tests.support import photos
from tests.support.augmentations import OTHER_SIZE
from tests.support.caches import EXTENT_BYTES, Cache
from tests.support.detection import coco_tree
from tests.support.odd_images import odd_tree
from tests.support.tiny_images import OwnLane, jpeg, nothing

TAIL: tuple[Op, ...] = (RandomCrop(24, pad_if_needed=True), RandomHorizontalFlip())
PIPELINES: dict[str, list[Op]] = {
    "resize": [Resize(32), *TAIL],
    "resize and flip": [Resize((24, 24)), RandomHorizontalFlip()],
    "all of it": [Resize(32), CenterCrop(24)],
    "middle": [CenterCrop(30), Resize(26), *TAIL],
    "grey": [Resize(32), Grayscale(1), *TAIL, ToDtype("float32")],
    "padded": [Pad(3), *TAIL, ToDtype("float32"), Normalize([0.5] * 3, [0.2] * 3)],
    "crops of whole images": [RandomResizedCrop(16), RandomHorizontalFlip(), ToLayout("CHW")],
    "colours of whole images": [ColorJitter(0.4), *TAIL],
}


class World:
    """A dataset, and rows of it with caches and without."""

    def __init__(self, spec: SourceSpec, home: Path) -> None:
        self.spec = spec
        self.index = build_index(spec, home)
        self.samples = self.index.samples

    def open(self) -> Source:
        return open_source(self.spec, self.index.path)

    def rows(
        self,
        pipelines: Sequence[Pipeline],
        caches: Sequence[Any] = (),
        encoded: Any = None,
        source: Source | None = None,
        passes: int = 2,
        shuffle: Shuffle = "full",
    ) -> tuple[list[list[tuple[bytes, int, int]]], list[BadRow]]:
        """The rows of all lanes, and the bad ones."""
        stream = Stream(source or self.open(), make_order(shuffle, self.samples, 5), 5, cache=encoded)
        lanes = [OwnLane(pipeline, passes * self.samples) for pipeline in pipelines]
        stores = [*caches, *[None] * (len(lanes) - len(caches))]
        targets = [lane.lane._replace(cache=store) for lane, store in zip(lanes, stores, strict=True)]
        bad: list[BadRow] = []
        for position in range(0, passes * self.samples, 8):
            bad += fill(stream, targets, position, min(8, passes * self.samples - position), nothing).bad
        for lane in lanes:
            os.close(lane.fd)
        return [lane.rows(0, passes * self.samples) for lane in lanes], bad


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Every kind of image, one that is cut off, and one that is none."""
    root = tmp_path_factory.mktemp("odd")
    spec = odd_tree(root, plain=6)
    (root / "plain" / "cut.jpg").write_bytes(jpeg(9, 80, 80)[:-150])
    (root / "plain" / "none.jpg").write_bytes(b"no image at all")
    return World(spec, tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module", params=["uint8", "uint16"])
def masked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    root, dtype = tmp_path_factory.mktemp("masked"), request.param
    rng = np.random.default_rng(1)
    for number in range(10):
        size = (40 + 8 * (number % 3), 56)
        for folder, kind, shape, of in (("images", "jpg", (*size, 3), "uint8"), ("masks", "png", size, dtype)):
            path = root / folder / "cats" / f"{number}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Picture.fromarray(rng.integers(0, np.iinfo(of).max + 1, shape, of)).save(path)
    (root / "masks" / "cats" / "4.png").write_bytes(b"no image")
    Picture.fromarray(np.zeros((3, 3), np.uint8)).save(root / "masks" / "cats" / "5.png")
    if dtype == "uint8":
        return World(ImageFolder(str(root / "images"), masks=str(root / "masks")), tmp_path_factory.mktemp("index"))
    lines = [f"images/cats/{number}.jpg,masks/cats/{number}.png,0" for number in range(10)]
    (root / "list.csv").write_text("\n".join(["image,mask,label", *lines]))
    columns: dict[str, kinds.Kind] = {"image": kinds.Image(), "mask": kinds.Mask(dtype=dtype), "label": kinds.Label()}
    return World(Csv(root / "list.csv", columns), tmp_path_factory.mktemp("index"))


@pytest.fixture
def new_cache(tmp_path: Path) -> Iterator[Callable[..., Cache]]:
    made: list[Cache] = []

    def make(world: World, nbytes: int = 32 << 20, on_disk: bool = False) -> Cache:
        made.append(Cache(world.samples, nbytes, tmp_path / f"cache{len(made)}" if on_disk else None))
        return made[-1]

    yield make
    for cache in made:
        cache.close()


def pipeline_of(name: str, columns: Columns | None = None, views: int = 1) -> Pipeline:
    return Pipeline.from_ops(PIPELINES[name], views, columns or images())


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("name", PIPELINES)
def test_rows_are_the_same_with_a_decoded_cache(
    odd: World, new_cache: Callable[..., Cache], name: str, on_disk: bool
) -> None:
    pipeline, cache = pipeline_of(name), new_cache(odd, on_disk=on_disk)
    expected = odd.rows([pipeline])
    for _ in range(2):
        assert odd.rows([pipeline], [cache.store()]) == expected
    counts = cache.book.counts
    assert odd.samples - 3 <= counts.rows <= odd.samples - 1
    assert counts.hits >= 3 * counts.rows


def test_the_pipelines_of_the_golden_rows_have_them_with_a_cache(odd: World, new_cache: Callable[..., Cache]) -> None:
    """Ops of all kinds, also those that will be new."""
    for each in golden.load()["rows"][::12]:
        pipeline, cache = Pipeline.from_wire(each["pipeline"]), new_cache(odd)
        expected = odd.rows([pipeline], passes=1)
        for _ in range(2):
            assert odd.rows([pipeline], [cache.store()], passes=1) == expected, each["pipeline"]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6000), st.integers(1, 6000), st.integers(0, 99))
def test_no_plan_has_a_scale_above_the_most(height: int, width: int, index: int) -> None:
    """Else a cache would hold an image at full size whose rows are made at a smaller scale."""
    pipelines = [Pipeline.from_wire(each["pipeline"]) for each in golden.load()["rows"][::8]]
    for pipeline in [*pipelines, *(Pipeline.from_ops([op, CenterCrop(9)]) for op in OTHER_SIZE)]:
        maker = RowMaker(pipeline)
        if head_of(pipeline).count == 0 and height * width < maker.max_pixels:
            with contextlib.suppress(BadSample):
                assert maker.plan(height, width, SampleKey(0, 0, index)).scale <= maker.most_scale(height, width)


@pytest.mark.parametrize("on_disk", [False, True])
def test_rows_are_the_same_with_an_encoded_cache(odd: World, new_cache: Callable[..., Cache], on_disk: bool) -> None:
    pipeline, cache = pipeline_of("crops of whole images"), new_cache(odd, on_disk=on_disk)
    expected = odd.rows([pipeline])
    for _ in range(2):
        assert odd.rows([pipeline], encoded=cache.store()) == expected
    assert cache.book.counts.rows == odd.samples


@pytest.mark.parametrize("name", ["resize", "all of it", "crops of whole images"])
def test_masks_and_views_are_kept_with_their_image(masked: World, new_cache: Callable[..., Cache], name: str) -> None:
    pipeline, cache = pipeline_of(name, masked.spec.columns, views=2), new_cache(masked)
    expected = masked.rows([pipeline])
    assert len({row.index for row in expected[1]}) == 2
    for _ in range(2):
        assert masked.rows([pipeline], [cache.store()]) == expected
    assert cache.book.counts.rows == masked.samples - 2


def test_lanes_with_one_head_share_a_cache_and_others_go_without(odd: World, new_cache: Callable[..., Cache]) -> None:
    resized = [pipeline_of("resize"), Pipeline.from_ops([Resize(32), RandomResizedCrop(8)])]
    other = pipeline_of("middle")
    assert head_of(resized[0]) == head_of(resized[1]) != head_of(other)
    expected = odd.rows([*resized, other])
    cache, second = new_cache(odd), new_cache(odd)
    store = cache.store()
    assert odd.rows([*resized, other], [store, store]) == expected
    assert odd.rows([*resized, other], [store, store, second.store()]) == expected
    assert odd.rows(resized[1:], [store])[0] == expected[0][1:2]
    assert cache.book.counts.rows >= odd.samples - 2


def test_a_full_cache_serves_what_it_has(odd: World, new_cache: Callable[..., Cache]) -> None:
    pipeline, cache = pipeline_of("resize"), new_cache(odd, 2 * EXTENT_BYTES)
    assert odd.rows([pipeline], [cache.store()]) == odd.rows([pipeline])
    assert 0 < cache.book.counts.rows < odd.samples
    assert cache.book.taken_bytes == 2 * EXTENT_BYTES


class _Counting(Source):
    def __init__(self, source: Source, stamp: int = 0) -> None:
        self.source, self.stamp_, self.reads = source, stamp, 0

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> Record:
        self.reads += 1
        return self.source.read(index)

    def label(self, index: int) -> int:
        return self.source.label(index)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def stamp(self, index: int) -> int:
        return self.stamp_


@pytest.mark.parametrize("form", ["decoded", "encoded"])
def test_what_is_kept_is_not_read_again(new_cache: Callable[..., Cache], tmp_path: Path, form: str) -> None:
    world = World(SyntheticImages(16, 40, 56), tmp_path)
    pipeline, cache = pipeline_of("resize"), new_cache(world)
    source = _Counting(world.open())
    for _ in range(2):
        store = cache.store()
        world.rows([pipeline], [store] if form == "decoded" else (), store if form == "encoded" else None, source)
        assert source.reads == 16
    changed = _Counting(world.open(), stamp=1)
    world.rows([pipeline], [store] if form == "decoded" else (), store if form == "encoded" else None, changed)
    assert changed.reads == 16


def test_samples_with_boxes_are_kept_as_they_are_stored(new_cache: Callable[..., Cache], tmp_path: Path) -> None:
    world = World(coco_tree(tmp_path / "data", 4), tmp_path)
    source, store = world.open(), new_cache(world).store()
    for index in range(world.samples):
        stored = source.read(index)
        assert store.put(index, 7, stored)
        kept = store.get(index, 7)
        assert kept is not None
        assert list(kept) == list(stored)
        assert kept["boxes"][1] == stored["boxes"][1] == (40, 56)
        assert np.array_equal(kept["boxes"][0], stored["boxes"][0])
        assert np.array_equal(kept["labels"], stored["labels"])


def test_without_room_a_sample_is_not_decoded_whole() -> None:
    """A crop of a photo decodes a part of it: filling a cache that is full must not cost the rest."""
    target = Lane.of(pipeline_of("crops of whole images"), OwnLane(pipeline_of("crops of whole images"), 8).ring)
    asked: list[int] = []

    def fits(nbytes: int) -> bool:
        asked.append(nbytes)
        return False

    assert after_head(target.makers[0], 0, {"image": jpeg(3, 40, 56)}, fits) is None
    assert asked == [40 * 56 * 3]


def test_a_photo_decoded_at_a_smaller_scale_is_not_kept_whole(tmp_path: Path) -> None:
    """Its pixels at full size would give other rows, and take many times the bytes."""
    pipeline = Pipeline.from_ops([RandomResizedCrop(16)])
    target = Lane.of(pipeline, OwnLane(pipeline, 8).ring)
    large, small = photos.jpeg(400, 400), photos.jpeg(100, 100)
    assert after_head(target.makers[0], 0, {"image": large}, lambda _: True) is None
    kept = after_head(target.makers[0], 0, {"image": small}, lambda _: True)
    assert kept is not None
    assert kept["image"].shape == (100, 100, 3)
    tiny = Pipeline.from_ops([RandomResizedCrop(4)])
    assert not Lane.of(tiny, OwnLane(tiny, 8).ring).is_served_by(kept)


def test_a_large_photo_behind_a_resize_is_kept_as_it_is_made(new_cache: Callable[..., Cache], tmp_path: Path) -> None:
    root = tmp_path / "large"
    root.mkdir()
    for number in range(3):
        (root / "a").mkdir(exist_ok=True)
        (root / "a" / f"{number}.jpg").write_bytes(photos.jpeg(512, 640, seed=number))
    world = World(ImageFolder(str(root)), tmp_path / "index")
    for ops in ([Resize(32), RandomCrop(24)], [RandomResizedCrop(24)], [CenterCrop(256), RandomResizedCrop(24)]):
        pipeline, cache = Pipeline.from_ops(ops), new_cache(world)
        expected = world.rows([pipeline], passes=3)
        assert world.rows([pipeline], [cache.store()], passes=3) == expected


def test_a_file_that_was_written_again_is_read_again(new_cache: Callable[..., Cache], tmp_path: Path) -> None:
    root = tmp_path / "data" / "a"
    root.mkdir(parents=True)
    for number in range(4):
        (root / f"{number}.jpg").write_bytes(jpeg(number))
    world = World(ImageFolder(str(tmp_path / "data")), tmp_path / "index")
    pipeline, cache, encoded = pipeline_of("resize"), new_cache(world), new_cache(world)
    world.rows([pipeline], [cache.store()], encoded.store())
    (root / "2.jpg").write_bytes(jpeg(77))
    (root / "3.jpg").unlink()
    expected = world.rows([pipeline])
    assert "the file is gone" in expected[1][0].reason
    assert world.rows([pipeline], [cache.store()]) == expected
    assert world.rows([pipeline], encoded=encoded.store()) == expected


def test_a_bad_sample_is_as_bad_with_a_cache(odd: World, new_cache: Callable[..., Cache]) -> None:
    class Refusing(_Counting):
        def read(self, index: int) -> Record:
            if index == 3:
                raise SampleError("refused")
            return super().read(index)

    pipeline = pipeline_of("resize")
    cache = new_cache(odd)
    rows, bad = odd.rows([pipeline], [cache.store()], source=Refusing(odd.open()))
    assert (rows, bad) == odd.rows([pipeline], source=Refusing(odd.open()))
    assert [row.reason.split(": ")[1] for row in bad if row.index == 3] == ["refused"] * 2


def test_an_error_in_filling_a_cache_is_found_without_it(
    odd: World, new_cache: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("prepserver.worker.caching.after_head", broken)
    pipeline, cache = pipeline_of("resize"), new_cache(odd)
    assert odd.rows([pipeline], [cache.store()]) == odd.rows([pipeline])


@pytest.mark.parametrize("patience_s", [60.0, -1.0])
@pytest.mark.parametrize("form", ["plain", "split", "mixed"])
@pytest.mark.parametrize("is_image", [True, False])
def test_a_cache_keeps_all_rows_of_a_group_at_once(
    is_image: bool, form: str, patience_s: float, new_cache: Callable[..., Cache], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Otherwise a shuffled epoch decodes a group for nearly each of its rows, if a worker cannot keep the groups."""
    count, labels = 120, list(range(120))
    values = pa.array([jpeg(k, 40, 56) for k in labels]) if is_image else pa.array([[k, -k] for k in labels])
    pq.write_table(pa.table({"image": values, "label": labels}), tmp_path / "a.parquet", row_group_size=count // 3)
    columns = {"image": kinds.Image() if is_image else kinds.Array((2,), "int64"), "label": kinds.Label()}
    plain = Parquet(str(tmp_path / "a.parquet"), columns=columns)
    spec = {"plain": plain, "split": Split(plain, 4, 1), "mixed": Mix([plain, Take(plain, 40)], [2, 1])}[form]
    world = World(spec, tmp_path)
    decoded: list[int] = []
    decode = parquet._Rows._decoded
    monkeypatch.setattr(parquet._Rows, "_decoded", lambda rows, group: (decoded.append(group), decode(rows, group))[1])
    monkeypatch.setattr(parquet, "KEPT_BYTES", 0)
    monkeypatch.setattr(caching, "_NEIGHBOURS_S", patience_s)
    pipeline = Pipeline.from_ops(PIPELINES["resize"] if is_image else [], 1, columns)
    expected, cache = world.rows([pipeline]), new_cache(world)
    assert len(decoded) > 10
    decoded.clear()
    assert world.rows([pipeline], encoded=cache.store()) == expected
    assert cache.book.counts.rows == world.samples
    if patience_s > 0:
        assert sorted(decoded) == ([0, 0, 1, 2] if form == "mixed" else [0, 1, 2])  # once for each part of a mix


@pytest.mark.parametrize("form", ["plain", "split"])
def test_rows_of_a_group_are_kept_from_the_sample_on(
    form: str, new_cache: Callable[..., Cache], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that decode a group at once seldom keep the same rows then; and bad ones take some of the time, too."""
    pq.write_table(pa.table({"x": range(120)}), tmp_path / "a.parquet")
    plain = Parquet(str(tmp_path / "a.parquet"), columns={"x": kinds.Scalar("int64")})
    world = World(plain if form == "plain" else Split(plain, 4, 1), tmp_path)
    source, clock = world.open(), itertools.count()
    monkeypatch.setattr(parquet, "KEPT_BYTES", 0)
    count, first = world.samples, world.samples // 3
    asked: list[int] = []

    def read(index: int) -> Record:
        asked.append(index)
        if index > first:
            raise SampleError("it is bad")
        return world.open().read(index)

    monkeypatch.setattr(source, "read", read)
    monkeypatch.setattr(caching, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    begun = Caching(Stream(source, make_order("full", world.samples, 5), 5, cache=new_cache(world).store()), [])
    first = world.samples // 2 - 1
    for patience_s, index, others in (
        (5.0, first, range(first + 1, first + 6)),
        (1e9, first - 1, [*range(first + 1, count), *range(first - 2, -1, -1)]),
    ):
        asked.clear()
        monkeypatch.setattr(caching, "_NEIGHBOURS_S", patience_s)
        begun.read(index, begun.stamp(index))
        assert asked == [index, *others]


def test_a_table_that_workers_keep_is_copied_in_blocks(new_cache: Callable[..., Cache], tmp_path: Path) -> None:
    """One by one, from the cache, its rows would take ten times as long."""
    pq.write_table(pa.table({"x": range(120), "label": range(120)}), tmp_path / "a.parquet", row_group_size=40)
    columns: dict[str, kinds.Kind] = {"x": kinds.Scalar("int64"), "label": kinds.Label()}
    world = World(Parquet(str(tmp_path / "a.parquet"), columns=columns), tmp_path)
    pipeline, cache = Pipeline.from_ops([], 1, columns), new_cache(world)
    assert world.rows([pipeline], encoded=cache.store()) == world.rows([pipeline])
    assert cache.book.counts.rows == 0


def test_in_order_groups_are_copied_in_blocks(
    new_cache: Callable[..., Cache], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another job shuffles the same table, and has a cache; but runs over two groups come from there."""
    monkeypatch.setattr(parquet, "KEPT_BYTES", 0)
    pq.write_table(pa.table({"x": range(120), "label": range(120)}), tmp_path / "a.parquet", row_group_size=60)
    columns: dict[str, kinds.Kind] = {"x": kinds.Scalar("int64"), "label": kinds.Label()}
    world = World(Parquet(str(tmp_path / "a.parquet"), columns=columns), tmp_path)
    pipeline, cache = Pipeline.from_ops([], 1, columns), new_cache(world)
    expected = world.rows([pipeline], passes=1, shuffle="none")
    reads: list[int] = []
    read = Store.get
    monkeypatch.setattr(Store, "get", lambda store, index, stamp: reads.append(index) or read(store, index, stamp))
    assert world.rows([pipeline], encoded=cache.store(), passes=1, shuffle="none") == expected
    assert reads == list(range(56, 64))


@pytest.mark.parametrize(("groups", "found"), [(1000, [3007, 4007, 1007, 7]), (10000, [])])
def test_samples_of_many_groups_may_come_in_between(groups: int, found: list[int]) -> None:
    """`Subset` in a random order, and `BucketByLength`, mix the samples of all groups."""

    class Mixed:
        def __len__(self) -> int:
            return 5000

        def group(self, index: int) -> int:
            return index % groups

    mixed: Any = Mixed()
    assert list(caching._neighbours(mixed, 2007)) == found
