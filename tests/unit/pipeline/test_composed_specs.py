"""Composed sources as data: what survives the wire, and what is refused at the border."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from prepserver.pipeline.composed import MAX_DEPTH, MAX_SOURCES, Blocks, Composed, Pattern
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import (
    Coco,
    Concat,
    FileList,
    Filter,
    ImageFolder,
    Interleave,
    Mix,
    Plugin,
    Repeat,
    Skip,
    SourceSpec,
    Split,
    Subset,
    SyntheticImages,
    Take,
    Tar,
    arrangement_of,
    source_from_wire,
)
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.work import TO_INDEXER, BuildIndex

A, B = ImageFolder("/data/a"), FileList("/data/b.txt")
ALL: list[SourceSpec] = [
    Concat([A, B]),
    Interleave([A, B], 2, 4),
    Mix([A, B], [0.7, 0.3]),
    Take(A, 5),
    Skip(A, 5),
    Repeat(A, 5),
    Subset(A, [5, 5, 1]),
    Subset(A, fraction=0.5, seed=3),
    Subset(A, file="/data/i.npy"),
    Filter(A, ["cat", 3]),
    Split(A, 5, 4, train=False),
    Take(Mix([Concat([A, B]), Repeat(Plugin("mine"), 2)], [1, 2]), 7),
]


@pytest.mark.parametrize("spec", ALL, ids=[type(spec).__name__ for spec in ALL])
def test_a_composition_survives_the_wire(spec: SourceSpec) -> None:
    wire = decode(encode(BuildIndex(spec.to_wire(), "/cache")), TO_INDEXER).source
    assert source_from_wire(wire) == spec
    assert source_from_wire(wire).digest == spec.digest
    assert len({each.digest for each in ALL}) == len(ALL)


def test_the_wire_form_holds_those_of_the_sources() -> None:
    assert Take(A, 5).to_wire() == {"source": "Take", "sources": [A.to_wire()], "n": 5}
    assert Subset(B, [3]).to_wire() == {"source": "Subset", "sources": [B.to_wire()], "indices": [3], "seed": 0}
    assert Take(Concat([A, A, B]), 5).location == "Take(Concat(/data/a, /data/b.txt))"
    assert len(Take(FileList("/" + "x" * 300), 1).location) == 200
    assert [part.location for part in Take(Concat([A, B]), 1).parts()][2:] == ["/data/a", "/data/b.txt"]


def test_what_is_equal_is_equal_data() -> None:
    assert Mix([A, B], [0.7, 0.3]) == Mix([A, B], [7, 3]) == Mix([A, B], (70, 30))
    assert Mix([A, B], [1 / 3, 2 / 3]).weights == (1, 2)
    assert Filter(A, ["b", 3, "a", 2, 3]).labels == (2, 3, "a", "b")
    assert Subset(A, np.arange(3)) == Subset(A, [0, 1, 2])  # type: ignore[arg-type]


def test_only_a_mix_has_a_pattern_which_is_spread() -> None:
    assert Mix([A, B], [3, 1]).pattern == (0, 0, 1, 0)
    assert arrangement_of(Mix([A, B, A], [2, 2, 4]).to_wire()) == ((2, 0, 1, 2), False)
    assert Repeat(Mix([A, B], [3, 1]), 2).pattern == Take(Mix([A, B], [3, 1]), 8).pattern == (0, 0, 1, 0)
    assert Take(Mix([A, B], [3, 1]), 7).pattern == Take(A, 8).pattern == ()
    assert A.arrangement == arrangement_of(Concat([A, B]).to_wire()) == ((), False)
    assert arrangement_of({"source": "OfAnotherRelease"}) == ((), False)


def test_copies_of_a_composition_are_equal_but_for_paths() -> None:
    here, there = (Concat([ImageFolder(f"/{at}/a"), Subset(A, file=f"/{at}/i.npy")]) for at in ("here", "there"))
    assert here.without_paths() == there.without_paths()
    assert here.digest != there.digest
    assert Concat([Take(A, 1)]).without_paths() != Concat([Take(A, 2)]).without_paths()


def test_the_code_of_plugins_is_named_at_any_depth() -> None:
    spec = Take(Concat([Plugin("mine"), B]), 3).with_code({("source", "mine"): "abc"})
    plugin = next(part for part in spec.parts() if isinstance(part, Plugin))
    assert plugin.code == "abc"
    with pytest.raises(SpecError, match="is no source plug-in that is loaded"):
        Take(Plugin("mine"), 3).with_code({})


def nested(depth: int) -> SourceSpec:
    spec: SourceSpec = A
    for _ in range(depth - 1):
        spec = Repeat(spec, 1)
    return spec


def test_depth_number_and_bytes_are_bounded() -> None:
    deepest = nested(MAX_DEPTH)
    assert decode(encode(BuildIndex(deepest.to_wire(), "/cache")), TO_INDEXER).source == deepest.to_wire()
    with pytest.raises(SpecError, match=f"lie deeper inside each other than {MAX_DEPTH}"):
        nested(MAX_DEPTH + 1)
    with pytest.raises(SpecError, match=f"more than {MAX_SOURCES}"):
        Concat([A] * (MAX_SOURCES + 1))
    with pytest.raises(SpecError, match=f"more than {MAX_SOURCES}, counting those inside others"):
        Concat([Concat([A] * MAX_SOURCES), A])
    with pytest.raises(SpecError, match=r"takes 25\d+ bytes in a message, more than 24576: use fewer sources"):
        Concat([FileList("/" + "x" * 1000 + str(number)) for number in range(25)])


def test_columns_that_differ_are_named() -> None:
    with pytest.raises(
        SpecError, match=r"sources\[1\] = '/data/m'.*mask is Mask\(size=None, .*, in sources\[0\] missing"
    ):
        Concat([A, ImageFolder("/data/m", masks="/data/masks")])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Concat([]), "sources = .*must be a list of sources"),
        (lambda: Concat(A), "sources = .*must be a list of sources"),  # type: ignore[arg-type]
        (lambda: Concat([A, "/data"]), r"sources\[1\] = '/data': must be a source"),  # type: ignore[list-item]
        (lambda: Mix([A, B], [1]), "must be one number for each of 2 sources"),
        (lambda: Mix([A, B], [1, 0]), "must be above 0: leave out"),
        (lambda: Mix([A, B], [1, 5000]), r"whose sum is at most 4096, such as \[7, 3\]"),
        (lambda: Mix([A, B], [1, 3**0.5]), "proportion of whole numbers"),
        (lambda: Mix([A, B], [10**9, 1]), "proportion of whole numbers"),
        (lambda: Interleave([A], 0), "cycle_length = 0"),
        (lambda: Interleave([A], 1, 0), "block_length = 0"),
        (lambda: Take(A, 0), "n = 0"),
        (lambda: Skip(A, -1), "n = -1"),
        (lambda: Repeat(A, 0), "k = 0"),
        (lambda: Split(A, 5, 5), "fold = 5: must be one of 5 folds, 0 to 4"),
        (lambda: Split(A, 1, 0), "k = 1"),
        (lambda: Filter(A, []), "labels = "),
        (lambda: Filter(A, "cat"), "labels = 'cat': must be a list"),
        (lambda: Filter(A, [True]), "labels = True"),
        (
            lambda: Filter(Coco("/data/a", "/data/a.json"), [0]),
            "/data/a.*: has no class number .* only image, boxes, lab",
        ),
        (lambda: Filter(Take(Tar("/data/a.tar", label=None), 5), [0]), "has no class number"),
        (lambda: Subset(A), "exactly one of the three"),
        (lambda: Subset(A, [1], 0.5), "exactly one of the three"),
        (lambda: Subset(A, []), "must be a list of indices"),
        (lambda: Subset(A, np.array(3)), "must be a list of indices"),  # type: ignore[arg-type]
        (lambda: Subset(A, list), "must be a list of indices"),  # type: ignore[arg-type]
        (lambda: Subset(A, list(range(1025))), "1025: are more than 1024 indices: .*by file="),
        (lambda: Subset(A, [-1]), "indices = -1"),
        (lambda: Subset(A, fraction=0), "must be above 0"),
        (lambda: Subset(A, fraction=1.5), "fraction = 1.5"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        ({"source": "Take", "n": 1}, "source.source = None: Take needs it"),
        (
            {"source": "Take", "sources": [], "n": 1},
            r"source.sources = \[\]: Take has no such parameter; it has: source",
        ),
        ({"source": "Take", "sources": [A.to_wire()] * 2, "n": 1}, "Take has no such parameter; it has: source, n"),
        ({"source": "Take", "sources": [A.to_wire()]}, "source.n = None: Take needs it"),
        ({"source": "Take", "sources": [{"source": "No"}], "n": 1}, r"source.sources\[0\].source = 'No'"),
        ({"source": "Concat", "sources": [A.to_wire(), 3]}, r"source.sources\[1\] = 3: must be a source"),
        (
            {"source": "Concat", "sources": [{"source": "ImageFolder", "root": "a"}]},
            r"sources\[0\].root = 'a': must be an",
        ),
        (
            {"source": "Subset", "sources": [A.to_wire()], "seed": 0, "file": "a"},
            "source.file = 'a': must be an absolute",
        ),
        ({"source": "Concat", "sources": {"a": 1}}, "must be a list of sources"),
        ({"source": "Repeat", "sources": [SyntheticImages(1).to_wire()], "k": 1, "x": 1}, "no such parameter"),
    ],
)
def test_a_wrong_map_is_refused_by_its_field(wire: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        source_from_wire(json.loads(json.dumps(wire)))


@pytest.mark.parametrize(
    ("source", "turns"),
    [
        (Concat([A, B]), Blocks()),
        (Interleave([A, B], 2, 3), Blocks(2, 3)),
        (Mix([A, B], [2, 1]), Pattern(Mix([A, B], [2, 1]).pattern)),
        (Repeat(A, 3), Pattern(length=30)),
        (Skip(A, 4), Pattern(start=4, length=6)),
        (Skip(A, 40), Pattern(start=40, length=0)),
        (Take(A, 4), Pattern(length=4)),
        (Take(A, 40), Pattern(length=10)),
    ],
)
def test_sources_take_turns(source: Composed, turns: Pattern | Blocks) -> None:
    assert source.turns([10, 7]) == turns
