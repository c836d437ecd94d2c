"""Files of lines: every sample where Python's own readers find it, its name, and what is said of bad ones."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prepserver.pipeline.kinds import Array, Bytes, Image, Json, Kind, Label, Mask, Scalar, Text, Tokens
from prepserver.pipeline.sources import Csv, Jsonl, Take, TextLines, source_from_wire
from prepserver.source import (
    OutsideRootsError,
    Roots,
    SampleError,
    Source,
    SourceError,
    build_index,
    lines,
    open_source,
)
from prepserver.source.reader import Listing

Spec = Csv | Jsonl | Take | TextLines
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def opened(spec: Spec, tmp_path: Path, roots: Roots | None = None) -> tuple[Source, Listing]:
    info = build_index(spec, tmp_path / "cache", roots=roots)
    return open_source(spec, info.path, roots), info


def records(spec: Spec, tmp_path: Path) -> list[Any]:
    source, _ = opened(spec, tmp_path)
    return [source.read(index) for index in range(len(source))]


def small_steps(monkeypatch: pytest.MonkeyPatch, block_bytes: int, stretch: int) -> None:
    monkeypatch.setattr(lines, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(lines, "_STRETCH", stretch)


@SLOW
@given(
    st.lists(st.text("ab é\r\n", max_size=30), min_size=1, max_size=3), st.integers(1, 40), st.integers(1, 5),
    st.booleans(),
)  # fmt: skip
def test_lines_are_those_of_python_without_empty_ones(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], block_bytes: int, stretch: int, mark: bool
) -> None:
    folder = tmp_path_factory.mktemp("any")
    expected = []
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_bytes((b"\xef\xbb\xbf" if mark else b"") + text.encode())
        for place, line in enumerate(text.split("\n"), start=1):
            if line.removesuffix("\r"):
                expected.append((line.rstrip("\r"), f"{folder}/{number}.txt, line {place}"))
    with pytest.MonkeyPatch.context() as patch:
        small_steps(patch, block_bytes, stretch)
        if not expected:
            with pytest.raises(SourceError, match="holds no lines"):
                build_index(TextLines(folder / "*.txt"), folder / "cache")
            return
        source, info = opened(TextLines(folder / "*.txt"), folder)
        assert [(source.read(k)["text"], source.name(k)) for k in range(len(source))] == expected
    assert (info.samples, info.num_classes) == (len(expected), 0)


def test_the_index_takes_eight_bytes_a_sample(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"0123456789\n" * 100_000)
    source, info = opened(TextLines(tmp_path / "a.txt"), tmp_path)
    assert info.path.stat().st_size < 8 * 100_000 + 2000
    assert source.name(99_999).endswith("a.txt, line 100000")


def test_a_line_that_is_no_utf8_is_bad_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("käse\n".encode() + b"\nk\xe4se\nb\n")
    source, _ = opened(TextLines(tmp_path / "a.txt"), tmp_path)
    assert [source.read(index) for index in (0, 2)] == [{"text": "käse"}, {"text": "b"}]
    with pytest.raises(SampleError, match=r"byte 1 of the line, 0xe4, is not UTF-8: convert the file with iconv"):
        source.read(1)
    assert source.name(1).endswith("a.txt, line 3")


def test_a_file_that_is_written_anew_is_another_state(tmp_path: Path) -> None:
    """Though its lines begin where they did; whoever reads by the old listing is told."""
    path = tmp_path / "a.txt"
    path.write_text("aa\nbb\n")
    os.utime(path, (1e9, 1e9))
    source, before = opened(TextLines(path), tmp_path)
    path.write_text("cc\ndd\n")
    other, after = opened(TextLines(path), tmp_path)
    assert (before.content_digest, before.samples) == (after.content_digest, after.samples)
    assert (before.digest, before.path) != (after.digest, after.path)
    with pytest.raises(SampleError, match=r"a\.txt has changed since the dataset was listed"):
        source.read(0)
    assert source.name(1).endswith("a.txt, sample 1")
    assert other.read(0) == {"text": "cc"}


def test_lines_too_long_to_be_counted_are_named_by_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names a bad sample reads no gigabytes for it."""
    (tmp_path / "a.txt").write_text("\n" + "long line\n" * 20)
    source, _ = opened(TextLines(tmp_path / "a.txt"), tmp_path)
    monkeypatch.setattr("prepserver.source.lines._MOST_COUNTED_BYTES", 100)
    assert source.name(7).endswith("a.txt, sample 7")
    monkeypatch.undo()
    assert source.name(7).endswith("a.txt, line 9")


def test_patterns_name_files_in_order(tmp_path: Path) -> None:
    for name in ("b/2", "b/10", "a/1", "a/.hidden", "c/9"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "b" / "folder").mkdir()
    spec = TextLines([tmp_path / "b" / "*", f"{tmp_path}/{{c,a}}/[0-9]"])
    assert [record["text"] for record in records(spec, tmp_path)] == ["b/10", "b/2", "c/9", "a/1"]
    assert spec.location == f"{tmp_path}/b/* and 1 more"
    for path, said in (
        (tmp_path / "b" / "x*", "no file matches"),
        (tmp_path / "none" / "*", "no file matches"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "b", r"is not a regular file; of a folder, name the files, such as .*/b/\*"),
        ([tmp_path / "b" / "2", tmp_path / "b" / "?"], "b/2 is named more than once"),
    ):
        with pytest.raises(SourceError, match=said):
            build_index(TextLines(path), tmp_path / "cache")


def test_what_lies_outside_the_roots_is_neither_listed_nor_told(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "there").write_text("secret")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    roots = Roots([str(tmp_path / "in")])
    for path in ("out/there", "out/*", "in/link/*", "in/l*/there", "in/l*/missing", "in/../out/t*"):
        with pytest.raises(OutsideRootsError):
            build_index(TextLines(f"{tmp_path}/{path}"), tmp_path / "cache", roots=roots)
    (tmp_path / "in" / "a.csv").write_text("p\nx\n")
    with pytest.raises(OutsideRootsError):
        build_index(Csv(tmp_path / "in/a.csv", {"p": Image()}, root=tmp_path / "out"), tmp_path / "cache", roots=roots)


CELLS = st.text('ab,;"\n é', max_size=6)


@SLOW
@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=6), st.integers(1, 50), st.booleans())
def test_records_are_those_of_pythons_csv(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], block_bytes: int, named: bool
) -> None:
    """Line ends and separators inside of quotes, too."""
    folder = tmp_path_factory.mktemp("any")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*([["one", "two", "b c"]] if named else []), *rows])
    (folder / "a.csv").write_text(text.getvalue(), newline="")
    header = None if named else ["one", "", "b c"]
    spec = Csv(folder / "a.csv", {"three": Text(), "one": Text()}, {"three": "b c"}, header=header)
    with pytest.MonkeyPatch.context() as patch:
        small_steps(patch, block_bytes, 2)
        source, _ = opened(spec, folder)
        found = [source.read(index) for index in range(len(source))]
        begin = 1 + named
        for index, row in enumerate(rows):
            assert source.name(index).endswith(f"a.csv, line {begin}")
            begin += 1 + "".join(row).count("\n")
    assert found == [{"three": row[2], "one": row[0]} for row in rows]


COLUMNS: Mapping[str, Kind] = {"x": Scalar(), "label": Label(), "t": Text(), "v": Array((2,), "uint8"), "k": Tokens()}
GOOD = {"x": 1.5, "label": 3, "t": "ä", "v": [1, 255], "k": [7, -8, 9]}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_columns_have_their_kinds(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    text = [json.dumps(GOOD)] if form == "jsonl" else ["t;x;label;k;v", 'ä;1.5;3;"[7, -8, 9]";[1,255]']
    path.write_text("\n".join(text))
    spec = Jsonl(path, COLUMNS) if form == "jsonl" else Csv(path, COLUMNS, delimiter=";")
    assert source_from_wire(spec.to_wire()) == spec
    (record,) = records(spec, tmp_path)
    assert list(record) == list(COLUMNS)
    dtypes = {name: value.dtype.name for name, value in record.items() if name != "t"}
    assert dtypes == {"x": "float32", "label": "int64", "v": "uint8", "k": "int64"}
    assert {name: value if name == "t" else value.tolist() for name, value in record.items()} == GOOD
    assert opened(spec, tmp_path)[0].label(0) == 3


def test_numbers_and_bools_are_read_as_pandas_writes_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,k,x,b\n1.0,-2.0,True,False\n3,4,0.5,true\n1e2, 5 ,false,1\n")
    columns = {"n": Label(), "k": Scalar("int8"), "x": Scalar(), "b": Scalar("bool")}
    found = [[value.item() for value in each.values()] for each in records(Csv(tmp_path / "a.csv", columns), tmp_path)]
    assert found == [[1, -2, 1.0, False], [3, 4, 0.5, True], [100, 5, 0.0, True]]
    assert [type(each) for each in found[0]] == [int, int, float, bool]
    (tmp_path / "b.csv").write_text("x,d\n-0,18446744073709551617\n9007199791611905,1\n100000000000000000000,-0\n")
    floats = records(Csv(tmp_path / "b.csv", {"x": Scalar(), "d": Scalar("float64")}), tmp_path)
    expected: list[tuple[Any, float]] = [("-0.0", 2.0**64), (np.float32(9007199791611905.0), 1.0), (1e20, -0.0)]
    assert [(each["x"].tobytes(), each["d"].tobytes()) for each in floats] == [
        (np.float32(x).tobytes(), np.float64(d).tobytes()) for x, d in expected
    ], "as Python reads floats"


JSON = [[{"role": "user", "content": "Grüße \ud800"}], {"a": {"b": [1.5, None]}}, "text", 7, True, None]


def test_a_json_value_of_any_form_is_text(tmp_path: Path) -> None:
    columns = {"m": Json()}
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"m": value}) for value in JSON))
    quoted = (json.dumps(value).replace('"', '""') for value in JSON)
    (tmp_path / "a.csv").write_text("m\n" + "\n".join(f'"{each}"' for each in quoted) + "\n{\n")
    (tmp_path / "deep.jsonl").write_text('{"o": {"m": [1]}}')
    for spec in (Jsonl(tmp_path / "a.jsonl", columns), Csv(tmp_path / "a.csv", columns)):
        assert source_from_wire(spec.to_wire()) == spec
        source, _ = opened(spec, tmp_path)
        texts = [source.read(index)["m"] for index in range(len(JSON))]
        assert [json.loads(text) for text in texts] == JSON
        assert all(text.isascii() for text in texts), "any text can be stored"
    with pytest.raises(SampleError, match=r"its m is '\{', and must be JSON"):
        source.read(len(JSON))
    assert records(Jsonl(tmp_path / "deep.jsonl", columns, {"m": "o.m"}), tmp_path) == [{"m": "[1]"}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": "1"}, "its x is '1', and must be a number of type float32"),
        ({"x": None}, "its x is None, and must be a number"),
        ({"x": [1.0]}, r"its x is \[1.0\], and must be a number"),
        ({"label": -1}, "its label is -1, and must be the number of a class, an integer from 0"),
        ({"label": 1.5}, "its label is 1.5, and must be the number of a class"),
        ({"label": float("nan")}, "its label is nan, and must be the number of a class"),
        ({"label": 1e300}, r"its label is 1e\+300, and must be the number of a class"),
        ({"label": 2.0**53}, "its label is 9007199254740992.0, and must be the number of a class"),
        ({"k": [2**53 + 1, 1.0]}, "and must be a list of integers"),
        ({"k": [-1e19]}, r"its k is \[-1e\+19\], and must be a list of integers"),
        ({"label": 2**63}, "its label is 9223372036854775808, and must be the number of a class"),
        ({"t": 5}, "its t is 5, and must be text"),
        ({"v": [1, 256]}, r"its v is \[1, 256\], and must be numbers of type uint8 in the shape \[2\]"),
        ({"v": [1]}, r"its v is \[1\], and must be numbers of type uint8 in the shape \[2\]"),
        ({"v": [[1], [2, 3]]}, "and must be numbers of type uint8"),
        ({"k": [0.5]}, "its k is .*, and must be a list of integers"),
        ({"k": 5}, "its k is 5, and must be a list of integers"),
        ({"k": "a" * 99}, r"its k is 'a{56}\.\.\., and must be a list of integers"),
    ],
)
def test_a_value_of_another_kind_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(GOOD | change)}\n{json.dumps(GOOD)}\n")
    source, _ = opened(Jsonl(tmp_path / "a.jsonl", COLUMNS), tmp_path)
    with pytest.raises(SampleError, match=said):
        source.read(0)
    assert source.read(1)["t"] == "ä"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1,2", "the line has 2 cells and the header 3"),
        ("1,2,3,4", "the line has 4 cells and the header 3"),
        ('1,"2"x,3', "the line is not CSV: a cell that holds a quote"),
        ('1,2,5" pipe\n2,3,6" pipe', "the line is not CSV: a cell that holds a quote or a line end must be enclosed"),
        ("one,2,3", "its x is 'one', and must be a number of type float32"),
        ("nan,2.5,3", "its n is 2.5, and must be the number of a class"),
        ("nan,two,3", "its n is 'two', and must be the number of a class"),
        ("nan,,3", "its n is '', and must be the number of a class"),
        (",2,3", "its x is '', and must be a number of type float32"),
    ],
)
def test_a_line_that_is_no_record_is_bad_alone(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"x,n,t\n\n{line}\ninf,2,t\n")
    source, _ = opened(Csv(tmp_path / "a.csv", {"x": Scalar(), "n": Label()}), tmp_path)
    with pytest.raises(SampleError, match=said):
        source.read(0)
    assert source.name(0).endswith("a.csv, line 3")
    assert source.read(1)["x"] == float("inf")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "a.csv has no column 'x'; it has: 'a', 'b'. For files without a header line pass header="),
        ("", "a.csv is empty: it has no header line that names the columns"),
        ("y;x\n1;2\n", r"it has: 'y;x'\. For files .* Where another character separates cells, pass delimiter=\."),
        ("PAR1 and more PAR1", "a.csv is a Parquet file, which has no lines: read it with Parquet"),
        ("x,x\n1,2\n", "a.csv has several columns 'x'"),
        ('x\n"1\n2\n', "a quote in the record of line 2 is never closed; double the quotes inside cells"),
        ("x\n", "a.csv holds no lines"),
        ("x\ry\r", "a.csv: the first record names the columns and cannot be read: .*lines end in LF or CR LF"),
    ],
)
def test_a_csv_that_cannot_be_used_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(SourceError, match=said):
        build_index(Csv(tmp_path / "a.csv", {"x": Scalar()}), tmp_path / "cache")


@pytest.mark.parametrize("form", ["gzip", "bz2", "lzma"])
def test_compressed_files_are_refused_by_name(form: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt.z").write_bytes(importlib.import_module(form).compress(b"hello\n"))
    with pytest.raises(SourceError, match=r"a.txt.z is compressed \((gzip|bzip2|xz)\).*unpack it once"):
        build_index(TextLines(tmp_path / "a.txt.z"), tmp_path / "cache")


@pytest.mark.parametrize("text", ['[{"x": 1},\n {"x": 2}]', '\ufeff [\n{"x": 1}]', '{\n  "x": 1\n}'])
def test_one_json_value_is_no_lines_of_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(SourceError, match=r"a\.json is one JSON value, and must hold an object in each line\. Convert"):
        build_index(Jsonl(tmp_path / "a.json", {"x": Scalar()}), tmp_path / "cache")


def test_keys_lead_into_objects(tmp_path: Path) -> None:
    rows = [{"a": {"b": {"c": 1}}}, {"a.b.c": 2}, {"a": 3}, [4], {"a": {"b": {}}}]
    lists: list[Any] = [{"a": [{"b": 5}]}]
    (tmp_path / "a.jsonl").write_text("\n".join([*map(json.dumps, rows), "{", "[" * 100_000, *map(json.dumps, lists)]))
    source, _ = opened(Jsonl(tmp_path / "a.jsonl", {"x": Scalar("int64")}, {"x": "a.b.c"}), tmp_path)
    assert [source.read(index)["x"] for index in (0, 1)] == [1, 2]
    in_list = "no 'a.b.c': 'b.c' would lie in a list, and dots lead into objects only"
    whole, nothing = "no 'a.b.c'$", "no 'a.b.c'; 'a.b' has: nothing"
    for index, said in enumerate((whole, "no JSON object", nothing, "not JSON", "not JSON", in_list), start=2):
        with pytest.raises(SampleError, match=f"the line (has|is|holds) {said}"):
            source.read(index)


def test_keys_may_have_dots_themselves(tmp_path: Path) -> None:
    rows = [{"a.b": {"c.d": 1, "c": 0}, "a": 2}, {"a": {"b.c": {"d": 3}}}, {"a.b.c": {"d": 4}, "a": {}}, {"a.b": {}}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source, _ = opened(Jsonl(tmp_path / "a.jsonl", {"x": Scalar("int64")}, {"x": "a.b.c.d"}), tmp_path)
    assert [source.read(index)["x"] for index in range(3)] == [1, 3, 4]
    with pytest.raises(SampleError, match=r"the line has no 'a\.b\.c\.d'; 'a\.b' has: nothing$"):
        source.read(3)


def test_a_key_that_no_line_has_is_refused_with_those_it_has(tmp_path: Path) -> None:
    """Where bad samples are skipped, a misspelt key would train on zeros."""
    lines = ['{"y": {"b": 1}, "z": 2}', "", "[1]", "{", '{"y": {"b": 1}}', '{"x": 3}', "\udcff", '{"x": 4, "y": {"b":']
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\n".join(lines), errors="surrogateescape")
    (tmp_path / "b.jsonl").write_text("1\n2\n")
    (tmp_path / "c.jsonl").write_text("")
    said = r"a\.jsonl: a line has no 'u'; it has: 'y', 'z'\. None of 3 lines at its beginning has it"
    with pytest.raises(SourceError, match=said):
        build_index(Jsonl(tmp_path / "*.jsonl", {"x": Scalar()}, {"x": "u"}), tmp_path / "cache")
    with pytest.raises(SourceError, match=r"a line has no 'y\.c'; 'y' has: 'b'\. None"):
        build_index(Jsonl(tmp_path / "*.jsonl", {"x": Scalar()}, {"x": "y.c"}), tmp_path / "cache")
    for there in (
        Jsonl(tmp_path / "*.jsonl", {"x": Scalar()}),  # a line has it
        Jsonl(tmp_path / "*.jsonl", {"x": Scalar(missing=0)}, {"x": "u"}),
        Jsonl(tmp_path / "{b,a}.jsonl", {"x": Scalar()}, {"x": "u"}),  # nothing is known of the first file
    ):
        source, _ = opened(there, tmp_path / "cache")
    with pytest.raises(SampleError, match=r"the line has no 'u'; it has: 'y', 'z'$"):
        source.read(2)


def test_a_column_may_name_files_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "images" / "below").mkdir(parents=True)
    (tmp_path / "images" / "below" / "a.jpg").write_bytes(b"image")
    (tmp_path / "images" / "a.png").write_bytes(b"mask")
    path, inside = tmp_path / "images" / "a.csv", f"{tmp_path}/images/a.png"
    path.write_text(
        f"i,m\nbelow/a.jpg,{inside}\nnone.jpg,a.png\n../a,a.png\nbelow/../a.png,a.png\n/etc/passwd,a.png\n,a.png"
    )
    columns = {"i": Image(), "m": Mask()}
    source, info = opened(Csv(path, columns), tmp_path)
    assert source.read(0) == {"i": b"image", "m": b"mask"}
    part, _ = opened(Take(Csv(path, columns), 2), tmp_path)
    files = f"i {tmp_path}/images/below/a.jpg, m {inside}"
    assert source.with_files(0, "torn") == part.with_files(0, "torn") == f"torn ({files})"
    assert source.with_files(5, "torn") == "torn"
    assert opened(Csv(path, columns, root=tmp_path / "images"), tmp_path)[0].read(0) == source.read(0)
    assert info.places == (f"{tmp_path}/images", f"{tmp_path}/cache")
    for index, said in (
        (1, f"its i {tmp_path}/images/none.jpg: the file is gone"),
        (2, r"its i is '../a', and must be the path of a file below .*, without \.\.$"),
        (3, "and must be the path of a file below"),
        (4, "its i is '/etc/passwd', which does not lie below .*images: pass another root="),
        (5, "its i is '', and must be the path"),
    ):
        with pytest.raises(SampleError, match=said):
            source.read(index)
    path.write_text("i,m\na.jpg,../a.png\n")
    other = Csv(path, columns, root=tmp_path / "images" / "below")
    assert opened(other, tmp_path)[1].places[:1] == (f"{tmp_path}/images",)


def test_a_column_may_name_files_of_any_form(tmp_path: Path) -> None:
    (tmp_path / "clouds").mkdir()
    (tmp_path / "clouds" / "0.bin").write_bytes(b"points")
    (tmp_path / "a.jsonl").write_text('{"p": "0.bin", "y": 3}\n{"p": "../a.jsonl", "y": 1}\n')
    spec = Jsonl(tmp_path / "a.jsonl", {"p": Bytes(), "y": Label()}, root=tmp_path / "clouds")
    source, _ = opened(spec, tmp_path)
    assert source.read(0) == {"p": b"points", "y": 3}
    assert source.with_files(0, "torn") == f"torn (p {tmp_path}/clouds/0.bin)"
    with pytest.raises(SampleError, match="must be the path of a file below"):
        source.read(1)
    (tmp_path / "a.csv").write_text("p,y\nclouds/0.bin,3\n")
    assert opened(Csv(tmp_path / "a.csv", {"p": Bytes(), "y": Label()}), tmp_path)[0].read(0) == source.read(0)


def test_a_name_that_no_file_can_have_is_a_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"i": "\\ud800.jpg"}\n')
    source, _ = opened(Jsonl(tmp_path / "a.jsonl", {"i": Image()}), tmp_path)
    with pytest.raises(SampleError, match="must be the path of a file below"):
        source.read(0)


def test_a_label_is_read_without_its_image_whatever_its_name(tmp_path: Path) -> None:
    """A Filter reads all labels: an image that is gone is a bad sample later, and the listing is none of its."""
    (tmp_path / "a.csv").write_text("image,y\ngone.jpg,3\n")
    spec = Csv(tmp_path / "a.csv", {"image": Image(), "y": Label()})
    source, _ = opened(spec, tmp_path)
    assert source.label(0) == 3
    with pytest.raises(SampleError, match="gone"):
        source.read(0)
