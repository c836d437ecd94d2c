from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import (
    FileList,
    HuggingFace,
    ImageFolder,
    Packed,
    SourceSpec,
    SyntheticImages,
    Tar,
    location_of,
    source_from_wire,
)

SPECS: list[SourceSpec] = [
    ImageFolder("/data/train"),
    FileList("/data/train.csv"),
    SyntheticImages(10),
    SyntheticImages(1 << 40, size=(1, 4096), seed=2**63 - 1, num_classes=1),
    Packed("/data/packed"),
    Tar("/data/{0..9}.tar"),
]
SYNTHETIC = SyntheticImages(10).to_wire()


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_survives_the_wire(spec: SourceSpec) -> None:
    wire = json.loads(json.dumps(spec.to_wire()))
    assert source_from_wire(wire) == spec
    assert source_from_wire(wire).digest == spec.digest


def test_the_wire_form_is_a_map_of_the_parameters() -> None:
    assert ImageFolder("/data").to_wire() == {"source": "ImageFolder", "root": "/data"}
    assert FileList("/l.txt").to_wire() == {"source": "FileList", "path": "/l.txt"}
    expected = {"source": "SyntheticImages", "n": 10, "size": [375, 500], "seed": 0, "num_classes": 1000}
    assert expected == SYNTHETIC


def test_a_spec_says_where_its_source_lies() -> None:
    assert [location_of(spec.to_wire()) for spec in SPECS[:3]] == ["/data/train", "/data/train.csv", "SyntheticImages"]
    assert location_of({"source": "OfAnotherRelease", "where": "/data"}) == "OfAnotherRelease"


def test_a_list_of_shards_is_refused_with_the_way_out() -> None:
    shards: Any = ["/data/s0.tar", "/data/s1.tar"]
    with pytest.raises(SpecError, match="must be one path: name several shards by braces"):
        Tar(shards)


def test_specs_that_differ_have_different_digests() -> None:
    assert len({spec.digest for spec in SPECS}) == len(SPECS)


@pytest.mark.parametrize("path", ["/data/train/", "/data//train", "/./data/train/.", Path("/data/train")])
def test_spellings_of_one_path_are_one_source(path: Any) -> None:
    assert ImageFolder(path) == ImageFolder("/data/train")


def test_a_step_up_is_left_to_the_server() -> None:
    assert ImageFolder("/data/../x").root == "/data/../x"


def test_one_number_is_both_sides() -> None:
    spec = SyntheticImages(1, size=64)
    assert (spec.size, spec.height, spec.width) == ((64, 64), 64, 64)


@pytest.mark.parametrize("root", ["", 3, None, b"/data", "/a\0b", "/\udcff"])
def test_a_root_that_is_no_path_is_refused(root: Any) -> None:
    with pytest.raises(SpecError) as caught:
        ImageFolder(root)
    assert caught.value.field == "root"


@pytest.mark.parametrize("root", ["data/train", ".", "~/data"])
def test_a_relative_path_counts_from_here_and_does_not_travel(root: str) -> None:
    made = ImageFolder(root)
    assert made.root == os.path.abspath(os.path.expanduser(root))
    with pytest.raises(SpecError, match="must be an absolute path") as caught:
        source_from_wire({**made.to_wire(), "root": root})
    assert caught.value.field == "source.root"


def test_masks_are_a_column_and_only_where_they_are_asked_for() -> None:
    assert list(ImageFolder("/data").columns) == list(FileList("/l").columns) == ["image", "label"]
    assert ImageFolder("/data").to_wire() == {"source": "ImageFolder", "root": "/data"}
    assert FileList("/l", masks=False) == FileList("/l")
    for source in (ImageFolder("/data", masks="/masks"), FileList("/l", masks=True)):
        assert list(source.columns) == ["image", "mask", "label"]
        assert source_from_wire(source.to_wire()) == source
    with pytest.raises(SpecError, match="masks"):
        FileList("/l", masks="/masks")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", (1 << 40) + 1),
        ("n", 1.0),
        ("n", True),
        ("n", "1"),
        ("size", 0),
        ("size", (4097, 1)),
        ("size", (1, 2, 3)),
        ("size", "ab"),
        ("size", True),
        ("size", None),
        ("seed", -1),
        ("seed", 2**63),
        ("num_classes", 0),
        ("num_classes", None),
    ],
)
def test_a_bad_parameter_is_named_here_and_on_the_wire(field: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        SyntheticImages(**{"n": 10, field: value})
    assert caught.value.field == field
    with pytest.raises(SpecError) as caught:
        source_from_wire(SYNTHETIC | {field: value})
    assert caught.value.field == f"source.{field}"


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        ("ImageFolder", "source"),
        (None, "source"),
        ({}, "source.source"),
        ({"source": "Nothing"}, "source.source"),
        ({"source": ["ImageFolder"]}, "source.source"),
        ({"source": "ImageFolder"}, "source.root"),
        ({"source": "ImageFolder", "root": "/d", "transform": "x"}, "source.transform"),
        ({"source": "ImageFolder", "root": "/d", 7: 1}, "source.7"),
        ({"source": "FileList", "path": "rel"}, "source.path"),
        ({"source": "SyntheticImages", "n": 4}, "source.size"),
    ],
)
def test_a_bad_map_is_refused_naming_the_field(wire: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        source_from_wire(wire)
    assert caught.value.field == field


TEXT = st.text("ab/0.", max_size=5)
SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(max_size=5)
PLAIN = SIMPLE | st.lists(SIMPLE, max_size=3) | st.dictionaries(TEXT, SIMPLE, max_size=2)
FIELDS = st.sampled_from(["root", "path", "n", "size", "seed", "num_classes"])


@given(kind=st.sampled_from([spec.to_wire() for spec in SPECS]), rest=st.dictionaries(FIELDS, PLAIN, max_size=2))
def test_whatever_arrives_becomes_a_spec_or_a_spec_error(kind: dict[str, Any], rest: dict[str, Any]) -> None:
    refused: str | None = None
    try:
        spec = source_from_wire(kind | rest)
    except SpecError as error:
        refused = error.field
    else:
        assert source_from_wire(spec.to_wire()) == spec
    assert refused is None or refused.removeprefix("source.") in rest


def test_a_source_says_where_it_is() -> None:
    assert [spec.location for spec in SPECS] == [
        "/data/train", "/data/train.csv", "SyntheticImages", "SyntheticImages", "/data/packed", "/data/{0..9}.tar",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [Tar, HuggingFace])
def test_columns_are_those_that_are_asked_for(kind: Any) -> None:
    assert list(kind("/d").columns) == ["image", "label"]
    assert list(kind("/d", mask="seg").columns) == ["image", "mask", "label"]
    assert list(kind("/d", label=None, mask="").columns) == ["image"]
    for source in (kind("/d"), kind("/d", mask="seg"), kind("/d", label=None)):
        assert source_from_wire(source.to_wire()) == source


@pytest.mark.parametrize(("kind", "wrong"), [(Tar, "a/b"), (Tar, "jpg;"), (Tar, "a b"), (Tar, 3), (HuggingFace, 3)])
@pytest.mark.parametrize("name", ["image", "label", "mask"])
def test_a_name_that_no_column_has_is_refused(kind: Any, wrong: Any, name: str) -> None:
    with pytest.raises(SpecError, match="must be") as caught:
        kind("/d", **{name: wrong})
    assert caught.value.field == name


def test_the_columns_of_a_packed_dataset_travel_with_it() -> None:
    spec = Packed("/data/packed", columns={"caption": kinds.Text(), "label": kinds.Label()})
    wire = json.loads(json.dumps(spec.to_wire()))
    assert wire["columns"] == [{"column": "caption", "kind": "Text"}, {"column": "label", "kind": "Label"}]
    assert source_from_wire(wire) == spec
    assert list(spec.columns) == ["caption", "label"]
    with pytest.raises(SpecError, match="columns names the mask"):
        Packed("/data/packed", masks=True, columns=spec.columns)


@pytest.mark.parametrize("name", ["", "/index-1a2b.packed"])
def test_the_folder_of_a_packed_dataset_is_known_by_its_index(name: str) -> None:
    assert Packed(f"https://host/packed{name}").folder == "https://host/packed"
