"""Windows over the rows of series, against slices of arrays."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import (
    Arrays,
    Concat,
    Csv,
    Filter,
    Jsonl,
    Parquet,
    SourceSpec,
    SyntheticImages,
    Take,
    TextLines,
    Windows,
    source_from_wire,
)
from prepserver.source import SampleError, Source, SourceError, build_index, open_source
from prepserver.source.readers import parquet, windows

COLUMNS = {"s": kinds.Label(), "x": kinds.Scalar("float64"), "y": kinds.Array((2,)), "name": kinds.Text()}
NUMBERS = {name: kind for name, kind in COLUMNS.items() if name != "name"}


def opened(spec: SourceSpec, home: Path) -> Source:
    return open_source(spec, build_index(spec, home / "cache").path)


def table(lengths: list[int]) -> dict[str, Any]:
    """Rows of series of these lengths, the numbers of the series in no order."""
    series = np.repeat([7 * k % 5 for k in range(len(lengths))], lengths)
    n = len(series)
    return {
        "s": series,
        "x": np.arange(n) + 0.5,
        "y": np.arange(2 * n, dtype="f4").reshape(n, 2),
        "name": [str(k % 3) for k in range(n)],
    }


def written(form: str, home: Path, rows: dict[str, Any]) -> SourceSpec:
    """Return a source of rows in a form: "numbers" for Parquet without the text."""
    if form == "arrays":
        for name in NUMBERS:
            np.save(home / f"{name}.npy", rows[name])
        return Arrays(columns={"s": kinds.Label()}, **{name: home / f"{name}.npy" for name in NUMBERS})
    made = pa.table({name: [*each] for name, each in rows.items() if name in NUMBERS or form != "numbers"})
    if form == "jsonl":
        (home / "a.jsonl").write_text("\n".join(map(json.dumps, made.to_pylist())))
        return Jsonl(home / "a.jsonl", COLUMNS)
    pyarrow.parquet.write_table(made, home / "a.parquet", row_group_size=7)
    return Parquet(home / "a.parquet", columns=NUMBERS if form == "numbers" else COLUMNS)


def expected(rows: dict[str, Any], spec: Windows, places: dict[str, list[int]]) -> list[dict[str, Any]]:
    """The samples, one by one, as somebody would write it who has all rows in memory."""
    found, cuts = [], np.flatnonzero(np.diff([int(each) for each in rows[spec.within or "s"]])) + 1
    for series in np.split(np.arange(len(rows["s"])), cuts) if spec.within else [np.arange(len(rows["s"]))]:
        all_places = [place for each in places.values() for place in each]
        owns = [own for own in series if spec.pad or np.isin([own + place for place in all_places], series).all()]
        for own in owns[:: spec.stride]:
            sample = {name: rows[name][own] for name in spec.sources[0].columns if name in spec.columns}
            for name, each in places.items():
                asked = own + np.array(each)
                sample[name] = np.array([rows[name][min(max(row, series[0]), series[-1])] for row in asked])
                if spec.pad:
                    sample[f"{name}_is_pad"] = ~np.isin(asked, series)
            found.append(sample)
    return found


PLACES = st.lists(st.integers(-5, 6), min_size=1, max_size=5)
SERIES = st.lists(st.integers(1, 12), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(["arrays", "numbers", "parquet", "jsonl"]), SERIES, st.booleans(), st.integers(1, 3))
def test_windows_are_slices_of_their_series(
    data: st.DataObject, form: str, lengths: list[int], pad: bool, stride: int
) -> None:
    rows = table(lengths)
    places = data.draw(st.dictionaries(st.sampled_from([*NUMBERS]), PLACES, min_size=1))
    within = data.draw(st.sampled_from(["s", "name", None]))
    within = None if within == "name" and form in ("arrays", "numbers") else within
    with tempfile.TemporaryDirectory() as folder:
        spec = Windows(written(form, Path(folder), rows), places, within, stride, pad)
        assert source_from_wire(json.loads(json.dumps(spec.to_wire()))) == spec
        samples = expected(rows, spec, places)
        if not samples:
            with pytest.raises(
                SourceError, match=r"the longest series has .* join fewer, sort the rows, or pass pad=True"
            ):
                build_index(spec, Path(folder))
            return
        source = opened(spec, Path(folder))
        assert len(source) == len(samples)
        for index in data.draw(st.permutations(range(len(samples)))):
            record = source.read(index)
            assert list(record) == list(spec.columns)
            for name, value in record.items():
                np.testing.assert_array_equal(value, samples[index][name])
        asked = data.draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=9))
        fixed = {name: kind.stored() for name, kind in spec.columns.items() if name != "name"}
        into = {name: np.empty((len(asked), *shape), dtype) for name, (shape, dtype) in fixed.items()}
        assert source.read_block(asked, into)
        for name, each in into.items():
            np.testing.assert_array_equal(each, [samples[index][name] for index in asked])


def bad_windows(source: Source, spec: SourceSpec) -> dict[int, str]:
    """Return why samples are bad, those that are good are in blocks, too."""
    found = {}
    stored = {name: kind.stored() for name, kind in spec.columns.items()}
    into = {name: np.empty((1, *shape), dtype) for name, (shape, dtype) in stored.items()}
    for index in range(len(source)):
        try:
            record = source.read(index)
        except SampleError as error:
            found[index] = str(error)
            with pytest.raises(SampleError):
                source.read_block([index], into)
        else:
            assert source.read_block([index], into)
            assert all((into[name][0] == value).all() for name, value in record.items())
    return found


@pytest.mark.parametrize("kept", [windows.KEPT_BYTES, 0])
@pytest.mark.parametrize("form", ["csv", "numbers"])
def test_a_bad_row_spoils_its_windows_alone(
    form: str, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "KEPT_BYTES", kept)
    source: SourceSpec
    if form == "csv":
        lines = [f"{k // 10},{k},7" for k in range(20)]
        lines[6], lines[14] = "0,1", "1,x,7"
        (tmp_path / "a.csv").write_text("\n".join(["s,x,z", *lines]))
        columns = {name: kinds.Scalar("int64") for name in "sxz"}
        source, place, why = Csv(tmp_path / "a.csv", columns), "line {}", "the line has 2 cells and the header 3"
    else:
        rows = table([10, 10])
        rows["x"] = [None if k in (6, 14) else each for k, each in enumerate(rows["x"])]
        source = written(form, tmp_path, rows)
        place, why = "row {}", "its x is null; missing=, of kinds.Scalar"
    spec = Windows(source, {"x": range(-1, 2)}, "s")
    windowed = opened(spec, tmp_path)
    bad = bad_windows(windowed, spec)
    assert list(bad) == [4, 5, 6, 10, 11, 12]  # samples 0 to 7 are rows 1 to 8, and 8 to 15 rows 11 to 18
    at = place.format(8 if form == "csv" else 6)
    assert all(f"{at}: {why}" in bad[index] for index in (4, 5, 6))
    assert windowed.name(5).endswith(at)


def test_rows_of_no_known_series_are_in_bad_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("s,x\n?,0\n1,1\n1,2\n?,3\n1,4\n2,5\n?,6\n3,7\n")
    spec = Windows(Csv(tmp_path / "a.csv", {"s": kinds.Scalar("int64"), "x": kinds.Scalar()}), {"x": [0, 1]}, "s")
    bad = bad_windows(opened(spec, tmp_path), spec)
    assert list(bad) == [0, 2, 3, 4]  # rows 0, 2, 3 and 5
    assert bad[2] == f"its row {tmp_path}/a.csv, line 5: its s is '?', and must be a number of type int64"
    (tmp_path / "a.csv").write_text("s,x\n?,0\n?,1\n")
    assert list(bad_windows(opened(spec, tmp_path), spec)) == [0]
    monkeypatch.setattr(windows, "records", lambda *_: iter([(0, None), (1, {"s": 1})]))
    (tmp_path / "a.csv").write_text("s,x\n1,0\n1,1\n")
    assert "could not be read when it was listed: touch" in bad_windows(opened(spec, tmp_path), spec)[0]


def test_rows_without_a_series_are_one_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_AT_ONCE", 4)  # a block ends among them
    (tmp_path / "a.csv").write_text("s,x\n1,0\n1,1\n,2\n,3\n,4\n,5\n2,6\n2,7\n")
    for s, blank in ((kinds.Scalar(missing=float("nan")), "nan"), (kinds.Text(""), "text")):
        spec = Windows(Csv(tmp_path / "a.csv", {"s": s, "x": kinds.Scalar()}), {"x": [0, 1]}, "s")
        source = opened(spec, tmp_path)
        assert [source.read(k)["x"][0] for k in range(len(source))] == [0, 2, 3, 4, 6], blank


def test_a_number_of_steps_is_for_all_columns_of_numbers(tmp_path: Path) -> None:
    rows = table([4, 3])
    spec = Windows(written("parquet", tmp_path, rows), 3, "s", pad=True)
    assert {name: kind.stored() for name, kind in spec.columns.items() if name not in ("s", "name")} == {
        "x": ((3,), "float64"), "y": ((3, 2), "float32"), "is_pad": ((3,), "bool"),
    }  # fmt: skip
    record = opened(spec, tmp_path).read(2)
    assert (record["x"].tolist(), record["is_pad"].tolist()) == ([2.5, 3.5, 3.5], [False, False, True])
    assert [column.blank for column in spec.columns.values()][-1] == 1  # where there is no sample
    assert list(Windows(spec.sources[0], 3).windows) == ["s", "x", "y"]


@pytest.mark.parametrize("form", ["arrays", "parquet", "jsonl"])
def test_compositions_of_windows_and_windows_of_compositions(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_AT_ONCE", 5)
    data = written(form, tmp_path, table([4, 5, 6, 3]))  # series 0, 2, 4 and 1
    chosen = Windows(Filter(data, [2, 1]), {"x": range(3)}, "s")
    whole = Concat([chosen, Take(Windows(data, {"x": [-2, -1, 0]}, "s"), 3)])
    source = opened(whole, tmp_path)
    assert [source.read(k)["x"].tolist()[0] for k in range(len(source))] == [4.5, 5.5, 6.5, 15.5, 0.5, 1.5, 4.5]
    into = {"x": np.empty((7, 3)), "y": np.empty((7, 2), "f4"), "s": np.empty(7, np.int64)}
    assert source.read_block(range(7), into)
    assert into["x"][:, 2].tolist() == [6.5, 7.5, 8.5, 17.5, 2.5, 3.5, 6.5]
    assert source.label(3) == 1
    twice = opened(Windows(Windows(data, {"x": range(3)}, "s"), {"x": [0, 2]}, "s"), tmp_path)
    assert twice.read(0)["x"].tolist() == [[4.5, 5.5, 6.5], [6.5, 7.5, 8.5]]
    labels = Windows(data, {"s": [0, 1]})
    assert opened(Concat([labels, labels]), tmp_path).read(20)["s"].tolist() == [0, 2]
    with pytest.raises(IndexError, match="indices 0 to 99 of a source of 17 samples"):
        opened(labels, tmp_path).read_block([99, 0], {})


def test_parameters_of_windows_are_its_identity(tmp_path: Path) -> None:
    data = written("parquet", tmp_path, table([9, 9]))
    several = [
        Windows(data, 3), Windows(data, 3, "s"), Windows(data, 3, "s", 2), Windows(data, 3, "s", 2, True),
        Windows(data, {"x": range(3)}), Windows(data, {"x": range(-2, 1)}), Windows(data, {"x": range(0, 6, 2)}),
    ]  # fmt: skip
    listings = [build_index(each, tmp_path / "cache") for each in several]
    assert len({each.digest for each in listings}) == len({each.content_digest for each in listings}) == len(several)
    assert Windows(data, {"x": [0, 2, 4]}) == several[-1] == Windows(data, {"x": range(0, 5, 2)})


def test_a_cache_is_told_that_windows_hold_rows_many_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "KEPT_BYTES", 1)
    monkeypatch.setattr(parquet, "_coarse_bytes", lambda nbytes, _: nbytes)
    data = written("numbers", tmp_path, table([100]))
    plain, many = (build_index(each, tmp_path / "cache") for each in (data, Windows(data, {"x": range(50)})))
    assert many.coarse_bytes == plain.coarse_bytes * 51 // 100 + 51 * 50 * 8


def test_what_is_no_window_is_refused() -> None:
    data: Any = Jsonl(
        "/a", {**COLUMNS, "any": kinds.Array(), "deep": kinds.Array((1,) * 8), "x_is_pad": kinds.Scalar()}
    )
    for arguments, said in (
        (({"name": range(3)},), r"steps.*must be columns of numbers of one shape.*name \(Text\), any \(Array\)"),
        (({"any": [0]},), "steps.*'any'.*must be columns of numbers"),
        (({"deep": [0]},), "steps.*'deep'.*of 7 dimensions at most"),
        (({"z": [0]},), "steps.*'z'.*must be columns of numbers"),
        (({},), "steps.*must be columns of numbers"),
        ((0,), "steps.*must lie between 1 and"),
        (({"x": [0], 1: [0]},), "must be the name of a column"),
        (({"x": 3},), r"steps\.x.*must be a list of 1 to 4096 values"),
        (({"x": range(1 << 40)},), r"steps\.x.*must be a list of 1 to 4096 values"),
        (({"x": [-0.1, 0]},), r"steps\.x.*must be an integer"),
        (({"x": [0]}, "any"), "within.*is no column of numbers or text"),
        (({"x": [0]}, "s", 1, True), "x_is_pad.*is a column of the source, and would be that of the padding"),
    ):
        with pytest.raises(SpecError, match=said):
            Windows(data, *arguments)
    with pytest.raises(SpecError, match="must be columns of numbers"):
        Windows(TextLines("/a"), 3, pad=True)
    assert list(Windows(SyntheticImages(3), 2).windows) == ["label"]
