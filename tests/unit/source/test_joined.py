"""Columns that join several columns of a file: one array in each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import Csv, Jsonl, Parquet, source_from_wire
from prepserver.source import SampleError, Source, SourceError, build_index, open_source

ROWS: list[dict[str, Any]] = [
    {"t": "a", "I1": 1, "I2": -1, "y": 0.5},
    {"t": "b", "I1": None, "I2": 3, "y": 1},
    {"t": "c", "I1": 5, "I2": 6, "y": 2},
]
COLUMNS: dict[str, kinds.Kind] = {
    "t": kinds.Text(),
    "dense": kinds.Array((3,), "float32"),
    "y": kinds.Scalar(),
    "one": kinds.Array((1,), "int64"),
}
NAMES = {"dense": ["I2", "y", "I1"], "one": ["I2"]}


def written(form: str, folder: Path, columns: dict[str, kinds.Kind], names: Any = NAMES) -> SourceSpec:
    path = folder / f"a.{form}"
    if form == "csv":
        lines = [",".join("" if each is None else str(each) for each in row.values()) for row in ROWS]
        path.write_text("\n".join([",".join(ROWS[0]), *lines]))
        return Csv(path, columns, names)
    if form == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
        return Jsonl(path, columns, names)
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    return Parquet(path, columns=columns, names=names)


def opened(spec: SourceSpec, tmp_path: Path) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_several_columns_of_numbers_are_one_array(form: str, tmp_path: Path) -> None:
    source = opened(written(form, tmp_path, COLUMNS), tmp_path)
    for index, expected in ((0, [-1, 0.5, 1]), (2, [6, 2, 5])):
        record = source.read(index)
        np.testing.assert_array_equal(record["dense"], np.array(expected, np.float32), strict=True)
        np.testing.assert_array_equal(record["one"], np.array(expected[:1], np.int64), strict=True)
        assert record["t"] == ROWS[index]["t"]
        assert record["y"] == ROWS[index]["y"]
    said = (
        r"its dense\[2\] is" if form != "jsonl" else r"its dense is \[3, 1, None\], and must be numbers of type float32"
    )
    with pytest.raises(SampleError, match=said):
        source.read(1)
    for names, error in (
        ({"dense": ["I2", "y", "I3"]}, "no column 'I3'|no 'I3'"),
        ({"dense": ["I2", "y", "t"]}, "its|is"),
    ):
        with pytest.raises((SourceError, SampleError), match=error):
            opened(written(form, tmp_path, COLUMNS, names | {"one": ["I2"]}), tmp_path).read(0)


def test_numbers_of_several_columns_are_read_in_blocks(tmp_path: Path) -> None:
    columns = {name: kind for name, kind in COLUMNS.items() if name != "t"}
    source = opened(written("parquet", tmp_path, columns), tmp_path)
    into: dict[str, Any] = {
        "dense": np.zeros((2, 3), np.float32),
        "y": np.zeros(2, np.float32),
        "one": np.zeros((2, 1), "i8"),
    }
    assert source.read_block([2, 0], into)
    assert into["dense"].tolist() == [[6, 2, 5], [-1, 0.5, 1]]
    assert into["one"].tolist() == [[6], [-1]]
    with pytest.raises(SampleError, match="one by one"):
        source.read_block([0, 1], into)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("missing", [-7, float("nan")])
def test_missing_numbers_of_an_array_get_its_number(form: str, missing: float, tmp_path: Path) -> None:
    columns = {**COLUMNS, "dense": kinds.Array((3,), "float32", missing=missing)}
    source = opened(written(form, tmp_path, columns), tmp_path)
    np.testing.assert_array_equal(source.read(1)["dense"], np.array([3, 1, missing], np.float32), strict=True)
    np.testing.assert_array_equal(source.read(0)["dense"], np.array([-1, 0.5, 1], np.float32), strict=True)
    if form == "parquet":
        columns.pop("t")
        into: dict[str, Any] = {
            "dense": np.zeros((2, 3), np.float32),
            "y": np.zeros(2, np.float32),
            "one": np.zeros((2, 1), "i8"),
        }
        assert opened(written(form, tmp_path, columns), tmp_path).read_block([1, 0], into)
        np.testing.assert_array_equal(into["dense"], [[3, 1, missing], [-1, 0.5, 1]])


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_nulls_in_lists_get_the_number_of_the_array(form: str, tmp_path: Path) -> None:
    rows: list[list[list[int | None]]] = [[[1, 2]], [[None, 4]], [[None, None]]]
    path = tmp_path / f"a.{form}"
    spec: dict[int | None, SourceSpec] = {}
    for missing in (None, -1):
        columns = {"x": kinds.Array((1, 2), "int64", missing=missing)}
        match form:
            case "csv":
                path.write_text("\n".join(["x", *(json.dumps(row).join('""') for row in rows)]))
                spec[missing] = Csv(path, columns)
            case "jsonl":
                path.write_text("\n".join(json.dumps({"x": row}) for row in rows))
                spec[missing] = Jsonl(path, columns)
            case _:
                pq.write_table(pa.table({"x": rows}), path)
                spec[missing] = Parquet(path, columns=columns)
    source = opened(spec[-1], tmp_path)
    assert [source.read(index)["x"].tolist() for index in range(3)] == [[[1, 2]], [[-1, 4]], [[-1, -1]]]
    with pytest.raises(SampleError, match=r"its x is .*None.* and must be numbers of type int64 in the shape .1, 2."):
        opened(spec[None], tmp_path).read(1)
    pq.write_table(pa.table({"x": [[1, None, 1 << 60], [None] * 3]}), tmp_path / "flat.parquet")
    source = opened(Parquet(tmp_path / "flat.parquet", columns={"x": kinds.Array((3,), "int64", missing=-1)}), tmp_path)
    assert [source.read(index)["x"].tolist() for index in range(2)] == [[1, -1, 1 << 60], [-1, -1, -1]]
    deep = tmp_path / "deep.jsonl"
    deep.write_text('{"x": ' + "[" * 400 + "]" * 400 + "}\n" + '{"x": [[1, 2]]}')
    source = opened(Jsonl(deep, {"x": kinds.Array((1, 2), "int64", missing=-1)}), tmp_path)
    with pytest.raises(SampleError, match="its x is"):
        source.read(0)


def test_a_missing_number_must_fit_the_array() -> None:
    with pytest.raises(SpecError, match=r"dense\.missing"):
        Csv("/a", {"dense": kinds.Array((2,), "int8", missing=300)})
    plain, other = (Csv("/a", {"x": kinds.Array((2,), missing=each)}) for each in (None, 0))
    assert "missing" not in str(plain.to_wire())
    assert plain.digest != other.digest
    assert source_from_wire(other.to_wire()).digest == other.digest
