"""Composed sources against lists, and what is wrong with a composition."""

from __future__ import annotations

import gc
import json
import os
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.pipeline.composed import Blocks, Pattern
from prepserver.pipeline.sources import (
    Arrays,
    Concat,
    FileList,
    Filter,
    Interleave,
    Mix,
    Parquet,
    Repeat,
    Skip,
    SourceSpec,
    Split,
    Subset,
    SyntheticImages,
    Take,
    Tar,
)
from prepserver.source import (
    OutsideRootsError,
    Roots,
    SampleError,
    Source,
    SourceError,
    build_index,
    open_source,
    shards,
)
from prepserver.source.cache import ListingCache
from prepserver.source.composed import drawn, unified
from prepserver.source.container import Container
from prepserver.source.maps import Interleaved, Woven
from tests.support.leaks import descriptors

T = TypeVar("T")
Sample = tuple[bytes, str]
"""Content and class."""

CLASSES = (("ant", "bee"), ("bee", "cow"), ("ant", "cow", "dog"))
LENGTHS = (1, 5, 12)
GOLDEN = [6, 1, 0, 5, 3, 8, 7, 9, 2, 4]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three lists of files with different classes, at rest, and a cache."""
    home = tmp_path_factory.mktemp("composed")
    for number, (names, length) in enumerate(zip(CLASSES, LENGTHS, strict=True)):
        (home / f"{number}").mkdir()
        for place in range(length):
            (home / f"{number}/{place}.jpg").write_bytes(f"{number}/{place}".encode())
        lines = [f"{number}/{place}.jpg {names[place % len(names)]}\n" for place in range(length)]
        (home / f"{number}.txt").write_text("".join(lines))
        os.utime(home / f"{number}.txt", (1e9, 1e9))
    return home


def leaf(home: Path, number: int) -> tuple[SourceSpec, list[Sample]]:
    names = CLASSES[number]
    samples = [(f"{number}/{place}".encode(), names[place % len(names)]) for place in range(LENGTHS[number])]
    return FileList(home / f"{number}.txt"), samples


def opened(spec: SourceSpec, home: Path, roots: Roots | None = None) -> Source:
    return open_source(spec, build_index(spec, home / "cache", roots=roots).path, roots)


def interleaved(lists: list[list[T]], cycle_length: int, block_length: int) -> list[T]:
    """tf.data's loop, sample by sample."""
    waiting: Iterator[Any] = iter([iter(each) for each in lists])
    slots: list[Any] = [None] * cycle_length
    out: list[T] = []
    slot = block = open_ = 0
    has_more = True
    while has_more or open_:
        current = slots[slot]
        if current is not None:
            try:
                out.append(next(current))
                block += 1
                if block == block_length:
                    slot, block = (slot + 1) % cycle_length, 0
            except StopIteration:
                slots[slot] = None
                open_ -= 1
                slot, block = (slot + 1) % cycle_length, 0
        elif has_more:
            slots[slot] = next(waiting, None)
            has_more = slots[slot] is not None
            open_ += has_more
        else:
            slot, block = (slot + 1) % cycle_length, 0
    return out


def mixed(lists: list[list[T]], pattern: tuple[int, ...]) -> list[T]:
    """Whole patterns, until each list has been read to its end."""
    endless, out = [cycle(each) for each in lists], []
    given_ = Counter[int]()
    while any(given_[number] < len(each) for number, each in enumerate(lists)):
        given_.update(pattern)
        out += [next(endless[number]) for number in pattern]
    return out


@st.composite
def compositions(draw: st.DrawFn, home: Path, depth: int = 3) -> tuple[SourceSpec, list[Sample]]:
    """A source and its samples."""
    kind = draw(st.sampled_from(["leaf", "concat", "interleave", "mix", "take", "skip", "repeat", "subset", "filter"]))
    if kind == "leaf" or depth == 0:
        return leaf(home, draw(st.integers(0, 2)))
    inner = compositions(home, depth - 1)
    if kind in ("concat", "interleave", "mix"):
        parts = draw(st.lists(inner, min_size=1, max_size=4))
        specs, lists = [spec for spec, _ in parts], [samples for _, samples in parts]
        if kind == "concat":
            return Concat(specs), [sample for each in lists for sample in each]
        if kind == "interleave":
            turns, block = draw(st.integers(1, 5)), draw(st.integers(1, 6))
            return Interleave(specs, turns, block), interleaved(lists, turns, block)
        mix = Mix(specs, draw(st.lists(st.integers(1, 4), min_size=len(specs), max_size=len(specs))))
        return mix, mixed(lists, mix.pattern)
    spec, samples = draw(inner)
    if kind == "filter":
        names = sorted({name for _, name in samples})
        wanted = draw(st.lists(st.sampled_from(names), min_size=1))
        return Filter(spec, wanted), [sample for sample in samples if sample[1] in wanted]
    if kind == "subset":
        indices = draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=9))
        return Subset(spec, indices), [samples[index] for index in indices]
    count = draw(st.integers(1, len(samples)))
    match kind:
        case "take":
            return Take(spec, count), samples[:count]
        case "skip":
            return Skip(spec, count - 1), samples[count - 1 :]
        case _:
            return Repeat(spec, 1 + count % 3), samples * (1 + count % 3)


@given(st.data())
def test_a_composition_is_what_lists_give(home: Path, data: st.DataObject) -> None:
    spec, samples = data.draw(compositions(home))
    source = opened(spec, home)
    assert len(source) == len(samples)
    classes = source.classes()
    for index in data.draw(st.permutations(range(len(samples))))[:60]:
        record = source.read(index)
        assert (record["image"], classes[record["label"]]) == samples[index]
        assert classes[source.label(index)] == samples[index][1]
        assert source.name(index).partition(" in ")[0] == f"{samples[index][0].decode()}.jpg"
    with pytest.raises(IndexError):
        source.read(len(samples))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_a_mix_is_exact_in_every_window(weights: list[int], data: st.DataObject) -> None:
    spec = Mix([SyntheticImages(10)] * len(weights), weights)
    period = sum(spec.weights)
    start = data.draw(st.integers(0, period))
    assert Counter(islice(cycle(spec.pattern), start, start + period)) == dict(enumerate(spec.weights))
    # Within a period, too, no source is ahead or behind by a whole turn.
    for end in range(1, period):
        for source, weight in enumerate(spec.weights):
            assert abs(spec.pattern[:end].count(source) - end * weight / period) < len(weights)


def test_a_mix_of_any_size_reads_each_sample(home: Path) -> None:
    spec = Mix([leaf(home, 1)[0], leaf(home, 2)[0]], [0.25, 0.75])
    source = opened(spec, home)
    assert len(source) == 20  # 5 patterns of 4: the 5 of the first once, the 12 of the other and 3 again
    given_ = Counter(source.name(index) for index in range(20))
    assert sorted(given_.values()) == [1] * 14 + [2] * 3


def test_any_sample_is_found_as_fast_as_the_first() -> None:
    drawn = [SyntheticImages(n, size=8, num_classes=3) for n in (1 << 30, 1 << 20, 77, 1 << 29)]
    spec = Take(Skip(Repeat(Interleave([Concat(drawn), Mix(drawn, [5, 1, 1, 2]), drawn[2]], 2, 10), 3), 5), 1 << 31)
    with tempfile.TemporaryDirectory() as folder:
        source = opened(spec, Path(folder))
    calls = {index: _calls(lambda index=index: source.read(index)) for index in (0, 10**6, 2**30 + 3, 2**31 - 1)}  # type: ignore[misc]
    assert all(count["read"] == count["_at"] + 1 for count in calls.values())  # each level once, and one sample
    assert max(sum(count.values()) for count in calls.values()) < 60


def _calls(do: Callable[[], object]) -> Counter[str]:
    counted = Counter[str]()
    sys.setprofile(lambda frame, event, _: counted.update([frame.f_code.co_name] if event == "call" else []))
    try:
        do()
    finally:
        sys.setprofile(None)
    return counted


@settings(max_examples=8)
@given(st.integers(2, 12), st.integers(0, 2**63 - 1))
def test_folds_are_disjoint_and_together_all(home: Path, k: int, seed: int) -> None:
    spec, samples = leaf(home, 2)
    folds = []
    for fold in range(k):
        test, train = opened(Split(spec, k, fold, train=False, seed=seed), home), Split(spec, k, fold, seed=seed)
        folds.append([test.name(index) for index in range(len(test))])
        other = opened(train, home)
        names = [other.name(index) for index in range(len(other))]
        assert sorted(names + folds[-1]) == sorted(f"2/{place}.jpg" for place in range(len(samples)))
        assert names == sorted(names, key=lambda name: int(name[2:-4]))  # the order stays
    assert sorted(name for fold in folds for name in fold) == sorted(f"2/{n}.jpg" for n in range(12))
    assert {len(fold) for fold in folds} <= {12 // k, -(-12 // k)}


def test_a_seed_draws_the_same_with_every_numpy(home: Path) -> None:
    assert drawn(10, 0).tolist() == GOLDEN
    spec, _ = leaf(home, 2)
    chosen = opened(Subset(spec, fraction=0.4, seed=0), home)
    whole = drawn(12, 0).tolist()
    assert [chosen.name(index) for index in range(len(chosen))] == [f"2/{n}.jpg" for n in sorted(whole[:5])]
    assert len(opened(Subset(spec, fraction=1e-9), home)) == 1
    assert len(opened(Subset(spec, fraction=1), home)) == 12


def test_a_file_of_indices_chooses_and_is_read_again(home: Path, tmp_path: Path) -> None:
    spec = Subset(leaf(home, 2)[0], file=tmp_path / "chosen.npy")
    np.save(tmp_path / "chosen.npy", np.array([3, 3, 11], np.uint16))
    first = build_index(spec, home / "cache")
    source = open_source(spec, first.path)
    assert [source.name(index) for index in range(3)] == ["2/3.jpg", "2/3.jpg", "2/11.jpg"]
    assert build_index(spec, home / "cache", lambda _: pytest.fail("listed again")) == first
    np.save(tmp_path / "chosen.npy", np.array([0], np.uint16))
    changed = build_index(spec, home / "cache")
    assert (changed.samples, first.samples) == (1, 3)
    assert changed.content_digest != first.content_digest
    assert len(open_source(spec, first.path)) == 3  # as for a stream that began on it


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array([0, 12]), r"index 12, at place 1 of 2, is not in 0 to 11"),
        (np.array([-1]), "index -1, at place 0 of 1"),
        (np.array([0.5]), r"holds float64 of shape \(1,\); it must be a list of integers"),
        (np.array([[1]]), r"shape \(1, 1\)"),
        (np.array([], np.int64), "not empty"),
        (np.array([{}]), r"is not a \.npy file: Object arrays.*numpy\.save"),
    ],
)
def test_a_file_of_wrong_indices_is_named(home: Path, tmp_path: Path, array: Any, said: str) -> None:
    np.save(tmp_path / "chosen.npy", array, allow_pickle=True)
    with pytest.raises(SourceError, match=said):
        build_index(Subset(leaf(home, 2)[0], file=tmp_path / "chosen.npy"), home / "cache")


@given(st.data())
def test_noise_instead_of_indices_is_an_error(home: Path, data: st.DataObject) -> None:
    buffer = BytesIO()
    np.save(buffer, np.arange(3))
    good = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, 127))] = data.draw(st.integers(0, 255))
    path = home / "noise.npy"
    path.write_bytes(good[: data.draw(st.integers(0, 151))])
    with pytest.raises(SourceError, match=r"noise\.npy"):
        build_index(Subset(leaf(home, 2)[0], file=path), home / "cache")


def test_a_missing_file_of_indices_is_named(home: Path) -> None:
    with pytest.raises(SourceError, match=r"the file of indices /nowhere\.npy does not exist"):
        build_index(Subset(leaf(home, 2)[0], file="/nowhere.npy"), home / "cache")


def test_what_leaves_nothing_is_an_error(home: Path) -> None:
    spec, _ = leaf(home, 1)
    for empty, said in (
        (Skip(spec, 5), r"Skip\(.*1.txt\) has 0 samples; there must be 1 to"),
        (Filter(spec, [7]), "has no samples with the labels 7"),
        (Filter(spec, ["ant"]), r"has no class 'ant'; its classes: bee, cow"),
        (Split(spec, 6, 0), "has 5 samples, too few for k = 6"),
        (Repeat(SyntheticImages(1 << 40), 2), r"has 2199023255552 samples"),
    ):
        with pytest.raises(SourceError, match=said):
            build_index(empty, home / "cache")


def test_labels_without_names_stay_as_they_are(home: Path, tmp_path: Path) -> None:
    (tmp_path / "numbers.txt").write_text(f"{home}/0/0.jpg 7\n")
    numbers, named = FileList(tmp_path / "numbers.txt"), leaf(home, 1)[0]
    source = opened(Concat([numbers, named]), home)
    assert [source.label(index) for index in range(3)] == [7, 0, 1]
    assert source.classes() == ["bee", "cow"]
    assert build_index(Concat([numbers, named]), home / "cache").num_classes == 8
    with pytest.raises(SourceError, match=r"name their classes differently.*numbers.txt has numbers instead of names"):
        build_index(Concat([numbers, named, leaf(home, 0)[0]]), home / "cache")
    inner, other = Concat([numbers, named]), leaf(home, 0)[0]
    for nested in (Concat([inner, other]), Concat([other, Take(inner, 2)]), Mix([Repeat(inner, 2), other], [1, 1])):
        with pytest.raises(SourceError, match=r"has numbers instead of names"):
            build_index(nested, home / "cache")


def test_a_listing_of_an_earlier_release_is_made_anew(home: Path) -> None:
    spec = Concat([leaf(home, 0)[0], leaf(home, 1)[0]])
    old = build_index(spec, home / "cache")
    cache = ListingCache(old.path.parent)
    meta = {name: value for name, value in Container(old.path).meta.items() if name != "is_numbered"}
    old.path.unlink()
    cache.publish(meta["key"], old.digest, meta, {})
    new = build_index(spec, home / "cache")
    assert "is_numbered" in Container(new.path).meta
    assert new.digest == old.digest


def test_names_that_begin_alike_change_no_label() -> None:
    no = (False, False)
    assert unified("ab", [["x", "y"], ["x", "y", "z"]], no) == (["x", "y", "z"], [None, None])
    assert unified("ab", [["x", "y"], ["z", "x"]], no) == (["x", "y", "z"], [None, [2, 0]])
    with pytest.raises(SourceError, match="but b has two classes of one name"):
        unified("ab", [["x", "y"], ["y", "y"]], no)


def test_a_sample_is_named_by_its_own_source(home: Path) -> None:
    first, other = leaf(home, 0)[0], leaf(home, 1)[0]
    assert opened(Take(Concat([other, other]), 9), home).name(6) == "1/1.jpg"
    nested = opened(Repeat(Concat([first, Take(other, 2)]), 2), home)
    said = [f"0/0.jpg in {home}/0.txt", f"1/0.jpg in {home}/1.txt", f"0/0.jpg in {home}/0.txt"]
    assert [nested.name(index) for index in (0, 1, 3)] == said


def test_sources_are_listed_once_for_all(home: Path, tmp_path: Path) -> None:
    found: list[int] = []
    spec = leaf(home, 2)[0]
    build_index(Concat([spec, Take(spec, 3), Mix([spec, spec], [1, 2])]), tmp_path, found.append)
    assert found == [12]
    build_index(spec, tmp_path, lambda _: pytest.fail("listed again"))
    here, there = (build_index(Take(spec, 3), tmp_path / name) for name in ("one", "other"))
    assert here.digest == there.digest  # in whatever cache
    assert here.path != there.path


def test_a_change_of_a_source_is_seen(home: Path, tmp_path: Path) -> None:
    spec = FileList(tmp_path / "list.txt")
    (tmp_path / "list.txt").write_text(f"{home}/0/0.jpg 0\n")
    before = build_index(Repeat(spec, 2), home / "cache")
    (tmp_path / "list.txt").write_text(f"{home}/0/0.jpg 0\n{home}/1/0.jpg 0\n")
    after = build_index(Repeat(spec, 2), home / "cache")
    assert (before.samples, after.samples) == (2, 4)
    assert before.digest != after.digest
    source = open_source(Repeat(spec, 2), before.path)
    assert (len(source), source.name(1)) == (2, f"{home}/0/0.jpg")


def test_roots_hold_for_every_source_and_file(home: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "chosen.npy", [0])
    inside, roots = leaf(home, 2)[0], Roots([str(home)])
    assert opened(Take(inside, 2), home, roots).read(1)["image"] == b"2/1"
    (tmp_path / "list.txt").write_text(f"{home}/0/0.jpg 0\n")
    for outside in (Concat([inside, FileList(tmp_path / "list.txt")]), Subset(inside, file=tmp_path / "chosen.npy")):
        with pytest.raises(OutsideRootsError, match="does not lie below the source roots"):
            build_index(outside, home / "cache", roots=roots)


def test_the_index_of_another_source_is_refused(home: Path) -> None:
    spec = leaf(home, 2)[0]
    path = build_index(Take(spec, 2), home / "cache").path
    with pytest.raises(SourceError, match="belongs to another dataset"):
        open_source(Take(spec, 3), path)
    with pytest.raises(SourceError, match="cannot open the index"):
        open_source(Take(spec, 3), path.with_name("gone"))


def test_a_label_without_a_name_is_a_bad_sample(home: Path) -> None:
    source = opened(Concat([leaf(home, 1)[0], leaf(home, 0)[0]]), home)
    source._tables[1] = []  # type: ignore[attr-defined]
    with pytest.raises(SampleError, match="its label is 0, and there are 0 classes"):
        source.read(5)


def test_sources_share_the_number_of_open_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_OPEN_AT_MOST", 5)
    for number in range(12):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
            member = tarfile.TarInfo("one.jpg")
            member.size = 1
            archive.addfile(member, BytesIO(b"%x" % number))
    tars = [Tar(tmp_path / f"{{{first}..{first + 3}}}.tar", label=None) for first in (0, 4, 8)]
    source = opened(Concat(tars), tmp_path)
    before = descriptors()
    for index in (*range(12), *range(11, -1, -1)):
        assert source.read(index) == {"image": b"%x" % index}
        assert len(os.listdir("/proc/self/fd")) <= before + 5
    del source
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < before


@given(st.data())
def test_many_places_are_those_found_one_by_one(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    pattern = data.draw(st.permutations([*range(len(lengths)), 0, 0]))
    start, count = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 20))
    cycle_length, block_length = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    for map_ in (
        Woven(Pattern(start=start, length=count), lengths[:1]),
        Woven(Pattern(tuple(pattern)), lengths),
        Interleaved(Blocks(cycle_length, block_length), lengths),
    ):
        indices = data.draw(st.lists(st.integers(0, map_.count - 1), min_size=1, max_size=40))
        sources, places = map_.places(np.array(indices))
        assert [*zip(sources.tolist(), places.tolist(), strict=True)] == [map_.at(index) for index in indices]


def test_chosen_samples_that_lie_close_are_read_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(5000))
    np.save(tmp_path / "chosen.npy", chosen := np.arange(5000)[::-1] // 2)
    source = opened(Subset(Arrays(x=tmp_path / "x.npy"), file=tmp_path / "chosen.npy"), tmp_path)
    indices = np.array([4990, 4990, 4999, *range(99), 105, 300, 5, 2000])
    into = {"x": np.empty(len(indices), np.int64)}
    calls = _calls(lambda: source.read_block(indices, into))
    assert into["x"].tolist() == chosen[indices].tolist()
    assert (calls["column"], calls["at"]) == (4, 0)


def test_rows_that_need_no_decoding_are_read_in_blocks(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 100)):
        np.save(tmp_path / f"{name}.npy", np.arange(first, first + 20, dtype=np.float32).reshape(10, 2))
    a, b = (Arrays(x=tmp_path / f"{name}.npy") for name in "ab")
    indices = [3, 1, 4, 1, 5, 11, 2, 6]
    for spec in (
        Concat([a, b]),
        Mix([b, a], [1, 2]),
        Subset(Concat([a, b]), [*range(19, 3, -1)]),
        Repeat(Skip(b, 3), 2),
    ):
        source = opened(spec, tmp_path)
        into = {"x": np.zeros((8, 2), np.float32)}
        assert source.read_block(indices, into)
        assert into["x"].tolist() == [source.read(index)["x"].tolist() for index in indices]
        with pytest.raises(IndexError):
            source.read_block([0, len(source)], into)


def test_a_block_has_the_common_labels(tmp_path: Path) -> None:
    specs = []
    for names in (["ant", "bee"], ["bee", "cow"]):
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = pa.table({"label": [0, 1, 0]}).replace_schema_metadata({"huggingface": json.dumps(features)})
        pa.parquet.write_table(table, tmp_path / f"{names[0]}.parquet")
        specs.append(Parquet(tmp_path / f"{names[0]}.parquet", label="label"))
    source = opened(Concat(specs), tmp_path)
    into = {"label": np.zeros(6, np.int64)}
    assert source.read_block([5, 4, 3, 2, 1, 0], into)
    assert into["label"].tolist() == [1, 2, 1, 0, 1, 0]
    source._tables[1] = [1]  # type: ignore[attr-defined]
    assert not source.read_block([5, 4, 3, 2, 1, 0], into)
