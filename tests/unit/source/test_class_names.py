"""Labels whose classes have names in a table: `kinds.Label(classes=...)` makes numbers of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prepclient import Arrays, Concat, Csv, Filter, ImageFolder, Jsonl, Parquet, Plugin, TFRecord, kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import source_from_wire
from prepserver.source import SampleError, Source, build_index, open_source
from tests.support.tf_records import example, framed
from tests.support.tiny_images import jpeg

NAMES = ["beagle", "cat", "1"]
CLASSES = ("cat", "beagle", "1")
COLUMNS: dict[str, kinds.Kind] = {"breed": kinds.Label(classes=CLASSES), "x": kinds.Scalar("int64")}


def csv(folder: Path, names: list[Any], columns: Any) -> SourceSpec:
    (folder / "a.csv").write_text("\n".join(["breed,x", *(f"{name},{x}" for x, name in enumerate(names))]))
    return Csv(folder / "a.csv", columns)


def jsonl(folder: Path, names: list[Any], columns: Any) -> SourceSpec:
    lines = [json.dumps({"breed": name, "x": x}) for x, name in enumerate(names)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return Jsonl(folder / "a.jsonl", columns)


def parquet(folder: Path, names: list[Any], columns: Any) -> SourceSpec:
    pq.write_table(pa.table({"breed": names, "x": range(len(names))}), folder / "a.parquet")
    return Parquet(folder / "a.parquet", columns=columns)


def categories(folder: Path, names: list[Any], columns: Any) -> SourceSpec:
    table = pa.table({"breed": pa.array(names).dictionary_encode(), "x": range(len(names))})
    pq.write_table(table, folder / "a.parquet")
    return Parquet(folder / "a.parquet", columns=columns)


def tf_record(folder: Path, names: list[Any], columns: Any) -> SourceSpec:
    rows: list[dict[str, Any]] = [{"breed": [str(name).encode()], "x": [x]} for x, name in enumerate(names)]
    (folder / "a").write_bytes(b"".join(framed(example(row)) for row in rows))
    return TFRecord(folder / "a", columns)


FORMATS = [csv, jsonl, parquet, categories, tf_record]
Write = Callable[[Path, list[Any], Any], SourceSpec]


def opened(spec: SourceSpec, tmp_path: Path) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


@pytest.mark.parametrize("write", FORMATS)
def test_names_of_classes_become_numbers(write: Write, tmp_path: Path) -> None:
    spec = write(tmp_path, [*NAMES, "dog"], COLUMNS)
    source, listing = opened(spec, tmp_path), build_index(spec, tmp_path / "cache")
    assert [int(source.read(index)["breed"]) for index in (0, 1, 2, 0)] == [1, 0, 2, 1]
    assert [source.label(index) for index in range(3)] == [1, 0, 2]
    assert (tuple(source.classes()), listing.classes, listing.num_classes) == (CLASSES, CLASSES, 3)
    for _ in range(2):
        with pytest.raises(
            SampleError, match=r"its breed is 'dog', and must be one of 3 classes: 'cat', 'beagle', '1'$"
        ):
            source.read(3)
    into: dict[str, Any] = {"breed": np.zeros(3, np.int64), "x": np.zeros(3, np.int64)}
    if source.read_block([2, 0, 1], into):
        assert into["breed"].tolist() == [2, 1, 0]
    plain = write(tmp_path, NAMES, {**COLUMNS, "breed": kinds.Label()})
    assert plain.digest != spec.digest == source_from_wire(spec.to_wire()).digest


@pytest.mark.parametrize("write", [jsonl, parquet])
def test_numbers_of_named_classes_must_be_theirs(write: Write, tmp_path: Path) -> None:
    source = opened(write(tmp_path, [2, 3, -1], COLUMNS), tmp_path)
    assert int(source.read(0)["breed"]) == 2
    for index in (1, 2):
        with pytest.raises(SampleError, match="one of 3 classes"):
            source.read(index)


def test_a_name_for_a_number_is_told_of_class_names(tmp_path: Path) -> None:
    source = opened(jsonl(tmp_path, ["cat"], {"breed": kinds.Label()}), tmp_path)
    with pytest.raises(SampleError, match=r"from 0; kinds\.Label\(classes=\[\.\.\.\]\) makes numbers of names"):
        source.read(0)
    with pytest.raises(SampleError, match="its breed is None, and must be one of 3 classes"):
        opened(jsonl(tmp_path, [None], COLUMNS), tmp_path).read(0)


def test_classes_of_a_table_are_matched_with_those_of_a_folder(tmp_path: Path) -> None:
    """`Filter` chooses by name, and `Concat` numbers the classes of both alike."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "0.jpg").write_bytes(jpeg(1))
    (tmp_path / "list.csv").write_text("image,label\ncat/0.jpg,dog\ndog/0.jpg,cat\ndog/0.jpg,dog")
    columns = {"image": kinds.Image(), "label": kinds.Label(classes=["dog", "cat"])}
    table = Csv(tmp_path / "list.csv", columns, root=tmp_path / "photos")
    both = opened(Concat([ImageFolder(tmp_path / "photos"), table]), tmp_path)
    assert both.classes() == ["cat", "dog"]
    assert [both.read(index)["label"] for index in range(5)] == [0, 1, 1, 0, 1]
    assert len(opened(Filter(table, labels=["dog"]), tmp_path)) == 2


def test_what_cannot_be_names_of_classes_is_refused() -> None:
    for classes in ("cat", ["cat", "cat"], ["cat", 1], [""], ["x" * 257], 5, [f"{k}" for k in range(4097)]):
        with pytest.raises(SpecError, match=r"columns\.label\.classes"):
            Csv("/a", {"label": kinds.Label(classes=classes)})  # type: ignore[arg-type]
    named: dict[str, kinds.Kind] = {"label": kinds.Label(classes=("cat",))}
    for make in (lambda: Plugin("a", columns=named), lambda: Arrays(label="/a.npy", columns=named)):
        with pytest.raises(SpecError, match="only Csv, Jsonl, Parquet and TFRecord"):
            make()
    assert Csv("/a", {"label": kinds.Label(classes=[f"class {k}" for k in range(1000)])}).digest
