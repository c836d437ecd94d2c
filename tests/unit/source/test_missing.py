"""Samples without a value: a kind with `missing` gets it, in every format; other columns make the sample bad."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prepclient import Csv, HuggingFace, Jsonl, Parquet, Tar, TFRecord, kinds
from prepserver.pipeline.declared import declared_kind
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import source_from_wire
from prepserver.plugin_values import conform
from prepserver.plugins import PluginError
from prepserver.source import SampleError, Source, SourceError, build_index, open_source
from tests.support.tf_records import example, framed
from tests.unit.source.test_hugging_face import write as write_arrow
from tests.unit.source.test_tar import write as write_tar

AGES, SIZES, NOTES = [1.5, None, 3.0], [7, None, -2], ["a", None, ""]
"""The values of each sample."""


def csv(folder: Path, columns: dict[str, kinds.Kind]) -> SourceSpec:
    lines = ["age,size,note,id"]
    lines += [
        ",".join("" if each is None else str(each) for each in (*row, k))
        for k, row in enumerate(zip(AGES, SIZES, NOTES, strict=True))
    ]
    (folder / "a.csv").write_text("\n".join(lines))
    return Csv(folder / "a.csv", columns)


def jsonl(folder: Path, columns: dict[str, kinds.Kind]) -> SourceSpec:
    rows = zip(AGES, SIZES, NOTES, strict=True)
    (folder / "a.jsonl").write_text(
        "\n".join(
            json.dumps({"o": {"age": age}, "size": size, "note": note, "id": k})
            for k, (age, size, note) in enumerate(rows)
        )
    )
    return Jsonl(folder / "a.jsonl", columns, {"age": "o.age"})


def jsonl_without_keys(folder: Path, columns: dict[str, kinds.Kind]) -> SourceSpec:
    lines = ['{"o":{"age":1.5},"size":7,"note":"a","id":0}', '{"id":1}', '{"o":{"age":3},"size":-2,"note":"","id":2}']
    (folder / "a.jsonl").write_text("\n".join(lines))
    return Jsonl(folder / "a.jsonl", columns, {"age": "o.age"})


def table() -> pa.Table:
    notes = pa.array(NOTES, pa.string())
    return pa.table(
        {"age": pa.array(AGES, pa.float64()), "size": pa.array(SIZES, pa.int64()), "note": notes, "id": range(3)}
    )


def parquet(folder: Path, columns: dict[str, kinds.Kind]) -> SourceSpec:
    pq.write_table(table(), folder / "a.parquet")
    return Parquet(folder / "a.parquet", columns=columns)


def hugging_face(folder: Path, columns: dict[str, kinds.Kind]) -> SourceSpec:
    return HuggingFace(write_arrow(folder / "data", [table()]).path, columns=columns)


def tf_record(folder: Path, columns: dict[str, kinds.Kind]) -> SourceSpec:
    records: list[dict[str, Any]] = [{"age": [1.5], "size": [7], "note": [b"a"], "id": [0]}, {"age": [], "id": [1]}]
    records.append({"age": [3.0], "size": [-2], "note": [b""], "id": [2]})
    (folder / "a").write_bytes(b"".join(framed(example(each)) for each in records))
    return TFRecord(folder / "a", columns)


def tar(folder: Path, columns: dict[str, kinds.Kind]) -> SourceSpec:
    files = {"0.age": b"1.5", "0.json": b'{"size": 7}', "0.id": b"0", "1.json": b"{}", "1.id": b"1"}
    files |= {"2.age": b"3", "2.json": b'{"size": -2}', "2.id": b"2", "0.note": b"a", "2.note": b""}
    files = dict(sorted(files.items()))
    return Tar(write_tar(folder / "a.tar", files), columns=columns, names={"size": "json:size"})


FORMATS = [csv, jsonl, jsonl_without_keys, parquet, hugging_face, tf_record, tar]


def opened(spec: SourceSpec, tmp_path: Path) -> Source:
    assert source_from_wire(spec.to_wire()).digest == spec.digest
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


@pytest.mark.parametrize("made", FORMATS)
def test_what_is_missing_is_replaced(made: Callable[[Path, dict[str, kinds.Kind]], SourceSpec], tmp_path: Path) -> None:
    columns = {"age": kinds.Scalar("float32", math.nan), "size": kinds.Scalar("int16", -1), "id": kinds.Label()}
    source = opened(made(tmp_path, columns), tmp_path)
    found = [source.read(index) for index in range(3)]
    assert np.array_equal([each["age"] for each in found], np.array([1.5, math.nan, 3], np.float32), equal_nan=True)
    assert [each["size"] for each in found] == [7, -1, -2]
    assert {name: str(np.asarray(value).dtype) for name, value in found[1].items()} == {
        "age": "float32", "size": "int16", "id": "int64",
    }  # fmt: skip
    into: dict[str, Any] = {"age": np.zeros(3, np.float32), "size": np.zeros(3, np.int16), "id": np.zeros(3, np.int64)}
    if source.read_block([2, 1, 0], into):
        assert np.array_equal(into["age"], np.array([3, math.nan, 1.5], np.float32), equal_nan=True)
        assert into["size"].tolist() == [-2, -1, 7]


@pytest.mark.parametrize("made", FORMATS)
def test_without_missing_such_a_sample_is_bad_alone(
    made: Callable[[Path, dict[str, kinds.Kind]], SourceSpec], tmp_path: Path
) -> None:
    columns = {"age": kinds.Scalar(), "size": kinds.Scalar("int16", -1), "id": kinds.Label()}
    source = opened(made(tmp_path, columns), tmp_path)
    with pytest.raises(SampleError, match="age"):
        source.read(1)
    source.read(0)
    source.read(2)


@pytest.mark.parametrize("made", FORMATS)
def test_a_text_that_is_missing_is_replaced(
    made: Callable[[Path, dict[str, kinds.Kind]], SourceSpec], tmp_path: Path
) -> None:
    columns = {"age": kinds.Scalar("float32", 0), "size": kinds.Scalar("int16", -1), "id": kinds.Label()}
    source = opened(made(tmp_path, {**columns, "note": kinds.Text("none")}), tmp_path)
    empty = "" if made is csv else "none"  # an empty cell is an empty text
    assert [source.read(index)["note"] for index in range(3)] == ["a", empty, ""]
    if made is not csv:
        (tmp_path / "bare").mkdir()
        source = opened(made(tmp_path / "bare", {**columns, "note": kinds.Text()}), tmp_path)
        with pytest.raises(SampleError, match="note"):
            source.read(1)


def test_json_and_columns_of_nulls_may_be_missing_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x":[1]}\n{"x":null}\n{}')
    source = opened(Jsonl(tmp_path / "a.jsonl", {"x": kinds.Json("[]")}), tmp_path)
    assert [source.read(index)["x"] for index in range(3)] == ["[1]", "[]", "[]"]
    pq.write_table(pa.table({"x": pa.nulls(2)}), tmp_path / "a.parquet")
    assert opened(Parquet(tmp_path / "a.parquet", columns={"x": kinds.Text("")}), tmp_path).read(1)["x"] == ""


@pytest.mark.parametrize("cell", ["", " ", "NA", "nan", "NULL", "<NA>"])
def test_cells_that_pandas_takes_for_missing_are_missing(cell: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"x,n\n{cell},{cell}\n1,1\n")
    columns: dict[str, kinds.Kind] = {"x": kinds.Scalar("float32", 0), "n": kinds.Scalar("uint8", 255)}
    record = opened(Csv(tmp_path / "a.csv", columns), tmp_path).read(0)
    assert (record["x"], record["n"]) == (0, 255)


def test_a_column_without_any_value_is_missing_throughout(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.nulls(2), "id": range(2)}), tmp_path / "a.parquet")
    columns: dict[str, kinds.Kind] = {"x": kinds.Scalar(), "id": kinds.Label()}
    with pytest.raises(SourceError, match="column 'x' is null, which cannot be read as"):
        opened(Parquet(tmp_path / "a.parquet", columns=columns), tmp_path)
    columns["x"] = kinds.Scalar("float32", math.nan)
    assert math.isnan(opened(Parquet(tmp_path / "a.parquet", columns=columns), tmp_path).read(1)["x"])


def test_a_number_that_does_not_fit_is_bad_and_not_missing(tmp_path: Path) -> None:
    cases: list[list[Any]] = [[1, 300, 2], [1, None, 300]]
    for number, values in enumerate(cases):
        pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), tmp_path / f"{number}.parquet")
        spec = Parquet(tmp_path / f"{number}.parquet", columns={"x": kinds.Scalar("uint8", 0)})
        source, wrong = opened(spec, tmp_path), values.index(300)
        with pytest.raises(SampleError, match="its x is 300, and must be a number of type uint8"):
            source.read(wrong)
        assert [source.read(index)["x"] for index in range(3) if index != wrong] == [1, values[3 - wrong] or 0]


def test_a_plug_in_may_give_none() -> None:
    assert conform("x", None, kinds.Scalar("int8", -1)) == -1
    assert conform("x", None, kinds.Text("")) == ""
    with pytest.raises(PluginError, match="gives NoneType"):
        conform("x", None, kinds.Scalar("int8"))


@pytest.mark.parametrize(
    ("dtype", "missing", "said"),
    [
        ("float32", math.inf, "must be finite"),
        ("float32", "none", "must be a number"),
        ("float16", 1e5, "must lie between -65504 and 65504"),
        ("int64", math.nan, "must be an integer"),
        ("int64", 0.5, "must be an integer"),
        ("uint8", -1, "must lie between 0 and 255"),
        ("int8", 128, "must lie between -128 and 127"),
        ("bool", 2, "must lie between 0 and 1"),
    ],
)
def test_a_replacement_is_a_number_of_its_type(dtype: str, missing: Any, said: str) -> None:
    with pytest.raises(SpecError, match=f"columns.x.missing = .*{said}"):
        declared_kind("columns.x", kinds.Scalar(dtype, missing))


def test_a_replacement_of_a_text_is_a_text() -> None:
    assert kinds.Text("") == kinds.Text(), "rows of both can be parts of one composition"
    for given in (0, "x" * 257):
        with pytest.raises(SpecError, match=r"columns.x.missing = .*must be a text of at most 256 characters"):
            declared_kind("columns.x", kinds.Text(given))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"columns.x.missing = .*must be JSON"):
        declared_kind("columns.x", kinds.Json("no json"))


def test_a_replacement_is_part_of_the_sources_data(tmp_path: Path) -> None:
    specs = [Csv(tmp_path / "a.csv", {"x": kinds.Scalar("bool", given)}) for given in (None, True, False)]
    assert len({spec.digest for spec in specs}) == 3
    assert "missing" not in specs[0].to_wire()["columns"][0], "a server of the release before knows no such attribute"
    assert kinds.Scalar("bool", True) == kinds.Scalar("bool"), "rows of both can be parts of one composition"
