"""Parquet files: every row as pyarrow reads it, and what is said of files and rows that cannot be used."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prepserver.pipeline.kinds import Array, Bytes, Image, Json, Kind, Label, Mask, Scalar, Text, Tokens
from prepserver.pipeline.sources import Parquet, Split
from prepserver.source import OutsideRootsError, Roots, SampleError, Source, SourceError, build_index, open_source
from prepserver.source.readers import parquet
from prepserver.source.roots import ANYWHERE

PYARROW = int(pa.__version__.partition(".")[0])

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class Own(pa.ExtensionType):  # type: ignore[misc]
    """As the Array2D of ``datasets``: nested lists, or other values."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage, "own")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Own:
        return cls(storage_type)


GRIDS = [[[1, 2, 3], [4, 5, 60000]], [[6, 7, 8], [9, 10, 11]]]


TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(1, 5, dtype=np.float32).reshape(2, 1, 2))


def images(count: int, first: int = 0) -> pa.Array:
    return pa.array([{"bytes": b"image %d" % number, "path": None} for number in range(first, first + count)], IMAGE)


def opened(spec: Parquet, tmp_path: Path, roots: Roots | None = None) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache", roots=roots).path, roots)


def one(tmp_path: Path, kind: Kind, values: Any, **write: Any) -> Source:
    """The source of one file with one column."""
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", **write)
    return opened(Parquet(tmp_path / "a.parquet", columns={"x": kind}), tmp_path)


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize(
    ("storage", "kind", "values"),
    [
        (pa.list_(pa.list_(pa.uint16())), Array((2, 3), "uint16"), GRIDS),
        (pa.string(), Text(), ["a", "b"]),
        (pa.string(), Json(), ['"a"', '"b"']),
        (pa.binary(), Bytes(), [b"a", b"b"]),
        (pa.int32(), Scalar("int64"), [1, 2]),
    ],
)
def test_a_type_of_its_own_is_what_it_is_stored_as(
    storage: Any, kind: Kind, values: list[Any], registered: bool, tmp_path: Path
) -> None:
    """A plug-in, or the script with inline=True, may have imported the library that registers the type."""
    own = Own(storage)
    given = [json.loads(each) for each in values] if isinstance(kind, Json) else values
    if registered:
        pa.register_extension_type(own)
    try:
        source = one(tmp_path, kind, pa.ExtensionArray.from_storage(own, pa.array(given, storage)))
        assert [np.asarray(source.read(index)["x"]).tolist() for index in (0, 1)] == values
    finally:
        if registered:
            pa.unregister_extension_type("own")


def test_rows_of_all_files_and_groups_are_samples(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}}}
    for number, count in enumerate((7, 0, 5)):
        labels = pa.array([row % 2 for row in range(count)], pa.int64())
        table = pa.table({"image": images(count, 10 * number), "label": labels})
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=3)
    spec = Parquet(tmp_path / "*.parquet")
    info = build_index(spec, tmp_path / "cache")
    source = open_source(spec, info.path)
    expected = [
        {"image": b"image %d" % (10 * f + row), "label": row % 2} for f, n in ((0, 7), (2, 5)) for row in range(n)
    ]
    assert [source.read(index) for index in range(12)] == expected
    assert [source.read(index) for index in reversed(range(12))] == expected[::-1]
    assert (info.samples, info.num_classes, source.classes()) == (12, 2, ["cat", "dog"])
    assert [source.label(index) for index in (0, 8)] == [0, 1]
    assert [source.name(index) for index in (6, 7)] == [
        f"{tmp_path}/0.parquet, row 6",
        f"{tmp_path}/2.parquet, row 0",
    ]
    with pytest.raises(IndexError):
        source.read(12)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (Text(), pa.array(["ä", ""]), ["ä", ""]),
        (Text(), pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (Text(), pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        (Bytes(), pa.array([b"a", b""]), [b"a", b""]),
        (Image(), pa.array([b"a", b"bb"], pa.large_binary()), [b"a", b"bb"]),
        (Mask(), pa.array([b"aa", b"bb"], pa.binary(2)), [b"aa", b"bb"]),
        (Label(), pa.array([1, 2], pa.uint8()), [1, 2]),
        (Label(), pa.array([1.0, 2.0]), [1, 2]),
        (Scalar("int8"), pa.array([-1.0, 2.0], pa.float32()), [-1, 2]),
        (Scalar(), pa.array([1.5, float("nan")], pa.float64()), [1.5, float("nan")]),
        (Scalar("float16"), pa.array([1, 2], pa.int32()), [1.0, 2.0]),
        (Scalar("uint8"), pa.array([True, False]), [1, 0]),
        (Array((2,)), pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), [[1, 2], [3, 4]]),
        (Array((2,), "int64"), pa.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (Array((2, 1)), pa.array([[[1.0], [2.0]], [[3.0], [4.0]]]), [[[1], [2]], [[3], [4]]]),
        (Array((1, 2)), TENSORS, [[[1, 2]], [[3, 4]]]),
        (Array(), TENSORS, [[[1, 2]], [[3, 4]]]),
        (Array(), pa.array([[1.0], [1.0, 2.0]]), [[1], [1, 2]]),
        (Tokens(), pa.array([[], [1, 2]], pa.list_(pa.int32())), [[], [1, 2]]),
        (Scalar("int64"), pa.array([-1, 20000], pa.int32()).cast(pa.date32()), [-1, 20000]),
        (Scalar("int64"), pa.array([5, 6], pa.int32()).cast(pa.time32("ms")), [5, 6]),
        (Scalar("int64"), pa.array([2**40, 6]).cast(pa.time64("ns")), [2**40, 6]),
        (Scalar("int64"), pa.array([2**60 + 1, -6]).cast(pa.timestamp("us", "UTC")), [2**60 + 1, -6]),
        (Scalar("int64"), pa.array([2**60 + 1, -6]).cast(pa.duration("ns")), [2**60 + 1, -6]),
        (Scalar("int64", -1), pa.array([None, 6]).cast(pa.timestamp("ms")), [-1, 6]),
    ],
    ids=str,
)
def test_columns_have_their_kinds(kind: Kind, values: pa.Array, expected: list[Any], tmp_path: Path) -> None:
    """Whatever Arrow stores them as, with the values of a slice."""
    source = one(tmp_path, kind, pa.concat_arrays([values, values]).slice(1, 3), row_group_size=2)
    for index, value in ((1, expected[0]), (2, expected[1])):
        found = source.read(index)["x"]
        if isinstance(found, str | bytes):
            assert found == value
        else:
            dtype = "int64" if isinstance(kind, Label | Tokens) else kind.dtype  # type: ignore[attr-defined]
            np.testing.assert_array_equal(found, np.array(value, dtype), strict=True)


@pytest.mark.parametrize(
    "values",
    [
        [[{"role": "user", "content": "ä"}, {"role": "assistant", "content": None}], [], None],
        [{"a": {"b": [1.5, 2.0]}}, {"a": {"b": None}}],
        [["one", "two"], ["three"]],
        [True, None],
    ],
    ids=str,
)
def test_a_value_of_any_form_is_json(values: list[Any], tmp_path: Path) -> None:
    rows = pa.array(values)
    source = one(tmp_path, Json(), pa.concat_arrays([rows, rows]).slice(1), row_group_size=2)
    found = [json.loads(source.read(index)["x"]) for index in range(len(source))]
    assert found == rows.to_pylist()[1:] + rows.to_pylist()


@pytest.mark.parametrize(
    "values", [pa.array([[b"a"]]), pa.array([1], pa.timestamp("s")), pa.array([{"a": b"b"}])], ids=str
)
def test_what_json_cannot_hold_is_refused(values: pa.Array, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"column 'x' is .*, which cannot be read as Json"):
        one(tmp_path, Json(), values)


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (Scalar("int64"), pa.array([None, 1]), "its x is null"),
        (Scalar("int64"), pa.array([None, 1]).cast(pa.timestamp("us")), "its x is null; missing="),
        (Scalar("uint8"), pa.array([256, 1]), "its x is 256, and must be a number of type uint8"),
        (Scalar("bool"), pa.array([2, 1]), "its x is 2, and must be a number of type bool"),
        (Scalar("float16"), pa.array([1e9, 1.0]), "its x is 1000000000.0, and must be a number of type float16"),
        (Label(), pa.array([-1, 1]), "its x is -1, and must be the number of a class"),
        (Label(), pa.array([0.5, 1.0]), "its x is 0.5, and must be the number of a class"),
        (Label(), pa.array([float("nan"), 1.0]), "its x is nan, and must be the number of a class"),
        (Label(), pa.array([2.0**53, 2.0**53 - 1]), "its x is 9007199254740992.0, and must be the number of a class"),
        (Scalar("uint64"), pa.array([2.0**63, 4.0]), "its x is 9.22.*e.18, and must be a number of type uint64"),
        (Scalar("int64"), pa.array([-(2.0**53), 4.0], pa.float32()), "its x is -9007199254740992.0, and must be"),
        (Image(), pa.array([b"", b"a"]), "its x is empty"),
        (Text(), pa.array([None, "a"]), "its x is null"),
        (Array((2,)), pa.array([[1.0], [1.0, 2.0]]), "its x is .*, and must be numbers of type float32 in the shape"),
        (Array((2,)), pa.array([[1.0, None], [1.0, 2.0]]), "its x holds a null"),
        (Array((1,), "int64"), pa.array([None, [1]]), "its x is null"),
        pytest.param(
            Array((1, 2)),
            pa.ExtensionArray.from_storage(TENSORS.type, pa.array([None, [1, 2]], TENSORS.storage.type)),
            "its x is null",
            marks=pytest.mark.skipif(PYARROW < 26, reason="older releases read no row of a group with a null tensor"),
        ),
        (Text(), pa.array([b"\xff", b"a"]).view(pa.string()), "byte 0 of its x is not UTF-8"),
    ],
    ids=str,
)
def test_a_row_that_is_not_of_the_kind_is_bad_alone(kind: Kind, values: pa.Array, said: str, tmp_path: Path) -> None:
    source = one(tmp_path, kind, values)
    with pytest.raises(SampleError, match=said):
        source.read(0)
    source.read(1)


def test_lists_of_fewer_dimensions_than_declared_are_bad(tmp_path: Path) -> None:
    source = one(tmp_path, Array((2, 3)), pa.array([[1.0, 2.0], [3.0, 4.0]]))
    with pytest.raises(SampleError, match=r"its x is .*, and must be numbers of type float32 in the shape \[2, 3\]"):
        source.read(0)


def test_numbers_are_read_in_blocks_of_any_order(tmp_path: Path) -> None:
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    table = pa.table({"v": pa.FixedSizeListArray.from_arrays(rows.ravel(), 2), "n": pa.array(range(20))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=6)
    source: Any = opened(Parquet(tmp_path / "a.parquet", columns={"v": Array((2,)), "n": Label()}), tmp_path)
    for indices in (list(range(20)), [7, 6, 19, 0, 0, 13], [5, 6, 7, 8], [3]):
        into: dict[str, Any] = {"v": np.zeros((len(indices), 2), np.float32), "n": np.zeros(len(indices), np.int64)}
        assert source.read_block(indices, into)
        assert into["v"].tolist() == rows[indices].tolist()
        assert into["n"].tolist() == indices
    source = one(tmp_path, Scalar("uint8"), pa.array([1, 256, None, 4]))
    for indices in ([0, 1], [2]):
        with pytest.raises(SampleError):
            source.read_block(indices, {"x": np.zeros(len(indices), np.uint8)})
    assert source.read_block([3, 0], {"x": np.zeros(2, np.uint8)})
    source = one(tmp_path, Scalar("int64"), pa.array([4, 2**53 - 8, 2**53], pa.float64()))
    with pytest.raises(SampleError):
        source.read_block([1, 2], {"x": np.zeros(2, np.int64)})
    assert source.read_block([0, 1], {"x": (into_x := np.zeros(2, np.int64))})
    assert into_x.tolist() == [4, 2**53 - 8]
    source = one(tmp_path, Scalar("int8"), pa.array(np.array([4, 60000], np.float16)))
    assert source.read_block([0], {"x": np.zeros(1, np.int8)})
    source = one(tmp_path, Text(), pa.array(["a"]))
    assert not source.read_block([0], {"x": np.zeros(1, np.int64)})


def test_the_listing_says_what_is_decoded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, count in enumerate((7, 0, 5)):
        pq.write_table(pa.table({"label": np.arange(count)}), tmp_path / f"{number}.parquet", row_group_size=3)
    spec = Parquet(tmp_path / "*.parquet", label="label")
    info = build_index(spec, tmp_path / "cache")
    assert sorted({*info.row_groups}) == [3, 6, 7, 10, 12]
    assert info.kept_rows > 12
    monkeypatch.setattr(parquet, "MAX_ROW_GROUPS", 2)
    few = build_index(spec, tmp_path / "cache").row_groups
    assert (len(few), few[-1], {*few} < {*info.row_groups}) == (2, 12, True)


def test_a_worker_keeps_as_many_groups_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "KEPT_BYTES", 3000)
    source: Any = one(tmp_path, Bytes(), pa.array([bytes([row]) * 1000 for row in range(10)]), row_group_size=1)
    decoded: list[int] = []
    decode = source._decoded
    monkeypatch.setattr(source, "_decoded", lambda group: decoded.append(group) or decode(group))
    for index in (0, 1, 0, 2, 0, 1, 0):  # with its offsets, a group takes some more than 1000 bytes
        assert source.read(index)["x"] == bytes([index]) * 1000
    assert decoded == [0, 1, 2, 1]


def test_groups_that_are_too_large_to_shuffle_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parquet, "KEPT_BYTES", 3000)
    one(tmp_path, Bytes(), pa.array([b"1" * 100] * 2))
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        one(tmp_path, Bytes(), pa.array([bytes([row]) * 1000 for row in range(9)]), use_dictionary=False)
    assert "without a cache, most samples of a shuffled order decode a whole group" in caplog.text
    spec = Parquet(tmp_path / "a.parquet", columns={"x": Bytes()})
    composed = Split(spec, 2, 0)
    found = [build_index(each, tmp_path / "cache").coarse_bytes for each in (spec, composed)]
    assert found[0] > 9000
    assert found[1] == found[0] * build_index(composed, tmp_path / "cache").samples // 9
    with monkeypatch.context() as before:
        before.setattr(parquet.ParquetReader, "edition", "")
        old = build_index(spec, tmp_path / "cache")
    new = build_index(spec, tmp_path / "cache")
    assert (new.path != old.path, new.digest) == (True, old.digest)  # jobs of the release before go on
    one(tmp_path, Bytes(), pa.array([b"1"] * 2))
    assert [build_index(each, tmp_path / "cache").coarse_bytes for each in (spec, composed)] == [0, 0]
    one(tmp_path, Bytes(), pa.array([bytes([row]) * 1000 for row in range(9)]), use_dictionary=False)
    monkeypatch.setattr(parquet, "MOST_GROUP_BYTES", 3000)
    with pytest.raises(SourceError, match=r"row group 0 has \d+ bytes, more than the limit of 3000"):
        one(tmp_path, Bytes(), pa.array([bytes([row]) * 1001 for row in range(9)]), use_dictionary=False)


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (Scalar(), pa.array([1], pa.timestamp("us")), r': kinds\.Scalar\("int64"\) gives it as an integer$'),
        (Label(), pa.array([1], pa.int32()).cast(pa.date32()), r'kinds\.Scalar\("int64"\) gives it as an integer'),
        (Array((1,), "int64"), pa.array([[1]], pa.list_(pa.timestamp("us"))), "cast it to a float or an integer"),
        (Scalar(), pa.array([1]).cast(pa.decimal128(20, 1)), "cast it to a float or an integer, and write"),
        (Scalar("int64"), pa.array(["1"]), r"Scalar\(dtype='int64'\)$"),
    ],
)
def test_times_and_decimals_are_refused_with_a_remedy(kind: Kind, values: pa.Array, said: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"cannot be read as .*{said}"):
        one(tmp_path, kind, values)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"image": "nope"},
            "a.parquet has no column 'nope': 'nope' is not among 'image', 'label', 't', 'twice', 'twice'$",
        ),
        ({"image": "image.none"}, "has no column 'image.none': 'none' is not among 'bytes', 'path'"),
        (
            {"label": "label.none"},
            "has no column 'label.none': 'none' would lie in values of type int64, and dots lead into structs only",
        ),
        ({"columns": {"twice": Scalar()}}, "a.parquet has several columns 'twice': rename all but one"),
        ({"columns": {"t": Scalar()}}, "a.parquet: column 't' is string, which cannot be read as Scalar.dtype="),
        (
            {"image": "t"},
            "column 't' is string: it may hold paths, .*: write them into the column, or read a table with the paths",
        ),
        ({"columns": {"label": Text()}}, "column 'label' is int64, which cannot be read as Text"),
        ({"columns": {"label": Tokens()}}, "column 'label' is int64, which cannot be read as Tokens"),
    ],
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(
    columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    names = ["image", "label", "t", "twice", "twice"]
    pq.write_table(pa.table([images(2), [1, 2], ["a", "b"], [1, 2], [3, 4]], names), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=said):
        build_index(Parquet(tmp_path / "a.parquet", **columns), tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("observation.images.top", b"image 0"),
        ("observation.images.top.bytes", b"image 0"),
        ("observation.state.of.arm.bytes", b"image 7"),
    ],
)
def test_names_of_columns_may_have_dots(name: str, found: bytes, tmp_path: Path) -> None:
    arm = pa.StructArray.from_arrays([images(1, 7), pa.array([3])], names=["of.arm", "of"])
    table = pa.table({"observation.images.top": images(1), "observation.state": arm, "observation": [5]})
    pq.write_table(table, tmp_path / "a.parquet")
    spec = Parquet(tmp_path / "a.parquet", image=name, columns={"x": Scalar()}, names={"x": "observation"})
    assert opened(spec, tmp_path).read(0) == {"image": found, "x": 5}
    with pytest.raises(SourceError, match=r"'images\.no' would lie in values of type int64"):
        build_index(Parquet(tmp_path / "a.parquet", image="observation.images.no"), tmp_path / "cache")


def test_a_table_without_images_needs_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"'image.bytes'.* among 'x'\. Parquet\(path\) reads images.* pass columns="):
        build_index(Parquet(tmp_path / "a.parquet"), tmp_path / "cache")


def test_a_file_that_is_damaged_changed_or_elsewhere_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 no parquet at all PAR1")
    with pytest.raises(SourceError, match=r"a\.parquet is damaged, or not a Parquet file"):
        build_index(Parquet(path), tmp_path / "cache")
    with pytest.raises(SourceError, match=r"is not a regular file; of a folder, name the files, such as .*/\*"):
        build_index(Parquet(tmp_path), tmp_path / "cache")
    pq.write_table(pa.table({"image": images(0), "label": pa.array([], pa.int64())}), path)
    with pytest.raises(SourceError, match="holds no rows"):
        build_index(Parquet(path), tmp_path / "cache")
    pq.write_table(pa.table({"image": images(9), "label": list(range(9))}), path)
    source = opened(Parquet(path), tmp_path)
    whole = bytearray(path.read_bytes())
    times = path.stat()
    whole[4:60] = bytes(56)
    path.write_bytes(whole)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(SampleError, match=r"row group 0 of a\.parquet cannot be decoded"):
        source.read(0)
    os.truncate(path, 50)
    with pytest.raises(SampleError, match=r"a\.parquet has 50 bytes and should have \d+: it has changed"):
        opened_anew(Parquet(path), source).read(0)
    (tmp_path / "in").mkdir()
    with pytest.raises(OutsideRootsError):
        build_index(Parquet(path), tmp_path / "cache", roots=Roots([str(tmp_path / "in")]))


@pytest.mark.parametrize(("byte", "error"), [(28, SampleError), (25, SourceError)], ids=["14 rows", "-13 rows"])
def test_a_footer_with_a_wrong_number_of_rows_is_damaged(byte: int, error: type[Exception], tmp_path: Path) -> None:
    path, spec = tmp_path / "a.parquet", Parquet(tmp_path / "a.parquet", columns={"x": Scalar("int64")})
    pq.write_table(pa.table({"x": list(range(39))}), path, row_group_size=13)
    whole, said = path.read_bytes(), []
    for place in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole) - 8):
        if whole[place] == 26:  # 13 in the footer's code
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            with contextlib.suppress(error):
                source = opened(spec, tmp_path)
                for index in range(len(source)):
                    try:
                        source.read(index)
                    except SampleError as bad:
                        said.append(bad.reason)
    assert error is SourceError or any("it has 13 rows, and the metadata of its file say 14" in each for each in said)


def opened_anew(spec: Parquet, source: Any) -> Source:
    """By the same listing, as another worker would."""
    anew: Source = type(source)(source._container, spec, ANYWHERE)
    return anew


@pytest.mark.parametrize(("kind", "noted"), [(Text(), True), (Text(), False), (Image(), False)], ids=str)
def test_a_value_that_many_rows_share_is_held_once(kind: Kind, noted: bool, tmp_path: Path) -> None:
    """A file of some kilobytes would else take gigabytes, in each worker: also where its schema says plain text."""
    long, short = (b"x" * (1 << 20), b"y") if isinstance(kind, Image) else ("x" * (1 << 20), "y")
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 3000 + [1, None], pa.int32()), pa.array([long, short]))
    pq.write_table(pa.table({"t": values}), tmp_path / "a.parquet", store_schema=noted)
    spec = Parquet(tmp_path / "a.parquet", columns={"t": kind})
    source = open_source(spec, build_index(spec, tmp_path / "cache").path)
    before = pa.total_allocated_bytes()
    assert source.read(2999) == {"t": long}
    assert source.read(3000) == {"t": short}
    assert pa.total_allocated_bytes() - before < 16 << 20
    with pytest.raises(SampleError, match="its t is null"):
        source.read(3001)


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"])
def test_texts_are_read_in_every_encoding(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow makes no dictionaries of some."""
    monkeypatch.setattr(parquet, "KEPT_BYTES", 1000)
    texts = [f"a long text {number % 7}" for number in range(500)]
    source = one(tmp_path, Text(), pa.array(texts), use_dictionary=False, column_encoding={"x": encoding})
    assert [source.read(index)["x"] for index in (0, 255, 499)] == [texts[0], texts[255], texts[499]]


def test_a_run_of_numbers_counts_as_what_it_becomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million equal numbers take some bytes in the file."""
    monkeypatch.setattr(parquet, "MOST_GROUP_BYTES", 4 << 20)
    values = pa.array(np.full(1 << 20, 7))
    with pytest.raises(SourceError, match="row group 0 has 8388608 bytes, more than the limit of 4194304"):
        one(tmp_path, Scalar("int64"), values)
    assert one(tmp_path, Scalar("int64"), values, row_group_size=1 << 19).read(0) == {"x": 7}
