"""Composed sources against lists, and what is wrong with a composition."""

from __future__ import annotations

import os
import sys
from collections import Counter
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.pipeline.sources import (
    Concat,
    FileList,
    Filter,
    ImageFolder,
    Interleave,
    Mix,
    Repeat,
    Skip,
    SourceSpec,
    Split,
    Subset,
    SyntheticImages,
    Take,
)
from prepserver.source import OutsideRootsError, Roots, SampleError, Source, SourceError, build_index, open_source

T = TypeVar("T")
Sample = tuple[bytes, str]
"""Content and class."""

CLASSES = (("ant", "bee"), ("bee", "cow"), ("ant", "cow", "dog"))
LENGTHS = (1, 5, 12)


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
    waiting, slots = iter([iter(each) for each in lists]), [None] * cycle_length
    out: list[T] = []
    slot = block = open_ = 0
    has_more = True
    while has_more or open_:
        current: Any = slots[slot]
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
            slots[slot] = next(waiting, None)  # type: ignore[call-overload]
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
        spec = Mix(specs, draw(st.lists(st.integers(1, 4), min_size=len(specs), max_size=len(specs))))
        return spec, mixed(lists, spec.pattern)
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
        assert source.name(index).endswith(f"{samples[index][0].decode()}.jpg")
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
