"""Files of tf.train.Example: what their records hold, and what is said of those that are damaged."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example as instance
from hypothesis import given, settings
from hypothesis import strategies as st

from prepclient import TFRecord
from prepserver.pipeline import kinds
from prepserver.pipeline.sources import source_from_wire
from prepserver.source import SampleError, Source, SourceError, build_index, open_source
from prepserver.source import example as module
from prepserver.source.example import BrokenExampleError, features, names
from prepserver.source.readers import tf_record
from tests.support.tf_records import example, feature, field, file_of, framed, varint

COLUMNS = {"image": kinds.Image(), "label": kinds.Label()}


def opened(spec: TFRecord, tmp_path: Path) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


def one(tmp_path: Path, kind: kinds.Kind, values: Any, packed: bool = True) -> Any:
    """What a column gets of a feature with these values."""
    (tmp_path / "a").write_bytes(framed(example({"x": values}, packed)))
    return opened(TFRecord(tmp_path / "a", {"x": kind}), tmp_path).read(0)["x"]


def test_samples_are_the_records_of_all_files_in_order(tmp_path: Path) -> None:
    for shard in range(3):
        records = [{"im/x": [b"%d" % (10 * shard + k) * (1 + 9000 * (k % 2))], "label": [k]} for k in range(4 * shard)]
        (tmp_path / f"t-{shard}-of-3").write_bytes(file_of(records))  # type: ignore[arg-type]
    for pattern in ("t-{0..2}-of-3", "t-*-of-3"):
        source = opened(TFRecord(tmp_path / pattern, names={"image": "im/x"}), tmp_path)
        assert len(source) == 12
        found = [source.read(index) for index in range(12)]
        assert [int(each["label"]) for each in found] == [0, 1, 2, 3, *range(8)]
        numbers = [*range(10, 14), *range(20, 28)]
        assert [each["image"] for each in found] == [b"%d" % n * (1 + 9000 * (n % 2)) for n in numbers]
        assert source.name(5) == f"{tmp_path}/t-2-of-3, record 1"
        assert source.label(6) == 2


def test_files_of_another_writer_are_read(tmp_path: Path) -> None:
    tfrecord = pytest.importorskip("tfrecord")
    values = np.random.default_rng(0).standard_normal((20, 30), dtype=np.float32)
    writer = tfrecord.TFRecordWriter(str(tmp_path / "a.tfrecord"))
    for number, row in enumerate(values):
        writer.write({
            "x": (row.tolist(), "float"), "label": (number * 10**9, "int"), "ids": ([-number, number, 1 << 40], "int"),
            "image": (b"%d" % number, "byte"),
        })  # fmt: skip
    writer.close()
    columns = {**COLUMNS, "x": kinds.Array((5, 6)), "ids": kinds.Array((3,), "int64")}
    source = opened(TFRecord(tmp_path / "*.tfrecord", columns), tmp_path)
    into: dict[str, np.ndarray[Any, Any]] = {
        "x": np.zeros((4, 5, 6), np.float32), "label": np.zeros(4, np.int64), "ids": np.zeros((4, 3), np.int64)
    }  # fmt: skip
    for number in range(20):
        record = source.read(number)
        assert record["image"] == b"%d" % number
        assert record["label"] == number * 10**9
        assert (record["x"] == values[number].reshape(5, 6)).all()
        assert record["ids"].tolist() == [-number, number, 1 << 40]
    del columns["image"]
    assert opened(TFRecord(tmp_path / "a.tfrecord", columns), tmp_path).read_block([3, 0, 3, 19], into)
    assert (into["x"] == values[[3, 0, 3, 19]].reshape(4, 5, 6)).all()
    assert into["label"].tolist() == [3 * 10**9, 0, 3 * 10**9, 19 * 10**9]


@pytest.mark.parametrize("packed", [True, False])
def test_a_feature_becomes_the_kind_of_its_column(packed: bool, tmp_path: Path) -> None:
    numbers = [1.5, -2.0]
    assert one(tmp_path, kinds.Array((2,)), numbers, packed).tolist() == numbers
    assert one(tmp_path, kinds.Array((2, 1), "float16"), numbers, packed).tolist() == [[1.5], [-2.0]]
    assert one(tmp_path, kinds.Scalar("float64"), [1.5], packed) == 1.5
    many = [-1, 0, 1 << 62, 300, 7, 8, 9, 10, 11]
    for count in (3, 9):
        assert one(tmp_path, kinds.Tokens(), many[:count], packed).tolist() == many[:count]
    assert one(tmp_path, kinds.Array((2,), "uint8"), [0, 255], packed).dtype == np.uint8
    assert one(tmp_path, kinds.Tokens(), [], packed).tolist() == []
    raw = np.arange(6, dtype=np.int16)
    assert one(tmp_path, kinds.Array((2, 3), "int16"), [raw.tobytes()]).tolist() == raw.reshape(2, 3).tolist()
    for values in ([], numbers, [np.array(numbers, np.float32).tobytes()]):
        found = one(tmp_path, kinds.Array(), values, packed)
        assert (found.dtype, found.tolist()) == (np.float32, numbers if values else [])
    assert one(tmp_path, kinds.Text(), ["é".encode()]) == "é"
    assert one(tmp_path, kinds.Bytes(), [b"\xff"]) == b"\xff"


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (kinds.Array((3,)), [1.0, 2.0], "2 numbers of type float32, and must be 3 numbers"),
        (kinds.Array((3,)), [b"12345"], "one value of 5 bytes, and must be 3 numbers"),
        (kinds.Array((2,), "uint8"), [0, 256], "must be numbers of type uint8"),
        (kinds.Array(), [b"12345"], "one value of 5 bytes, and must be numbers of type float32"),
        (kinds.Array((1,), "int64"), [1.5], "must be numbers of type int64"),
        (kinds.Label(), [-1], "an integer from 0"),
        (kinds.Label(), [1, 2], "2 numbers of type int64, and must be 1"),
        (kinds.Label(), [], "0 values of bytes"),
        (kinds.Label(), [b"cat"], "one value of 3 bytes, and must be 1 numbers"),
        (kinds.Tokens(), [b"ab"], "must be integers"),
        (kinds.Image(), [b"a", b"b"], "2 values of bytes, and must be one"),
        (kinds.Image(), [3], "1 numbers of type int64, and must be one value of bytes"),
        (kinds.Text(), [b"ab\xff"], "byte 2 of its x is not UTF-8"),
    ],
)
def test_a_feature_that_does_not_fit_is_a_bad_sample(kind: kinds.Kind, values: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=said):
        one(tmp_path, kind, values)


def test_a_feature_that_is_missing_is_named_with_those_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(file_of([{"b": [1], "a": [2]}, {}]))
    source = opened(TFRecord(tmp_path / "a", {"x": kinds.Label()}), tmp_path)
    for index, said in enumerate(("has no feature 'x'; it has: a, b", "it has: none")):
        with pytest.raises(SampleError, match=said):
            source.read(index)


GOOD = file_of([{"image": [b"x" * 40], "label": [k]} for k in range(3)])
RECORD = len(GOOD) // 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "holds no records"),
        (GOOD[:-1], f"cut off: a record at byte {2 * RECORD} of {3 * RECORD - 1} has {RECORD - 16} bytes. Copy it"),
        (GOOD[: 2 * RECORD + 5], f"cut off: a record at byte {2 * RECORD} of {2 * RECORD + 5} has no length"),
        (b"\x09" + GOOD, "is not a TFRecord file, or compressed"),
        (GOOD[:RECORD] + b"\xff" + GOOD[RECORD + 1 :], f"is damaged: the checksum of the length at byte {RECORD}"),
        (zlib.compress(GOOD), "is not a TFRecord file, or compressed"),
        (framed(b"")[:8] + framed(b"")[:4], "is not a TFRecord file"),
    ],
)  # fmt: skip
def test_a_file_that_is_damaged_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(data)
    with pytest.raises(SourceError, match=f"a.tfrecord .*{said}"):
        build_index(TFRecord(tmp_path / "a.tfrecord"), tmp_path / "cache")


def test_a_length_that_lies_with_a_right_checksum_is_refused(tmp_path: Path) -> None:
    length = (1 << 63).to_bytes(8, "little")
    (tmp_path / "a").write_bytes(GOOD + length + tf_record.masked_crc(length).to_bytes(4, "little") + bytes(99))
    with pytest.raises(SourceError, match=f"byte {len(GOOD)} of .* has {1 << 63} bytes"):
        build_index(TFRecord(tmp_path / "a"), tmp_path / "cache")


def test_a_record_with_a_wrong_checksum_is_bad_alone(tmp_path: Path) -> None:
    for at in (RECORD + 20, 2 * RECORD - 1):
        (tmp_path / "a").write_bytes(GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :])
        source = opened(TFRecord(tmp_path / "a"), tmp_path)
        with pytest.raises(SampleError, match="its checksum is wrong: the record is damaged"):
            source.read(1)
        assert [int(source.read(index)["label"]) for index in (0, 2)] == [0, 2]


def test_a_record_that_is_no_example_is_bad_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(framed(b"\x0b junk") + GOOD)
    source = opened(TFRecord(tmp_path / "a"), tmp_path)
    with pytest.raises(SampleError, match=r"it is not a tf.train.Example: a field has the unknown type 3"):
        source.read(0)
    assert int(source.read(3)["label"]) == 2


def test_a_file_that_was_cut_after_listing_is_a_bad_sample(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(GOOD)
    source = opened(TFRecord(tmp_path / "a"), tmp_path)
    source.read(0)
    os.truncate(tmp_path / "a", 2 * RECORD + 20)
    with pytest.raises(SampleError, match="a has 198 bytes and should have 267: it has changed"):
        source.read(2)


def test_what_is_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(GOOD)
    spec = TFRecord(tmp_path / "a")
    info = build_index(spec, tmp_path / "cache")
    monkeypatch.setattr(tf_record, "google_crc32c", None)
    with pytest.raises(SourceError, match=r"pip install 'prepserver\[tfrecord\]'"):
        open_source(spec, info.path)
    with pytest.raises(SourceError, match="google-crc32c"):
        build_index(spec, tmp_path / "other")


def test_the_spec_travels_and_checks_its_columns() -> None:
    spec = TFRecord(["/data/{a,b}", "/more/*"], {"x": kinds.Array((2,)), "y": kinds.Label()}, {"y": "a/b"})
    assert source_from_wire(spec.to_wire()) == spec
    assert list(TFRecord("/a").columns) == ["image", "label"]


def parsed(data: bytes, *wanted: bytes) -> dict[bytes, Any]:
    return features(data, 0, len(data), wanted)


VALUES = st.one_of(
    st.lists(st.binary(max_size=200), max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), max_size=200),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40),
)


@settings(max_examples=150)
@given(st.dictionaries(st.text(max_size=200), VALUES, max_size=4), st.booleans(), st.binary(max_size=3))
def test_what_was_written_is_read(values: dict[str, Any], packed: bool, junk: bytes) -> None:
    # Unknown fields of every wire type are passed over, in the Example and in a Feature.
    odd = varint(9 << 3) + varint(300) + varint(9 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4) + field(9, junk)
    data = odd + example(values, packed) + field(1, field(1, field(1, b"odd") + field(2, odd + feature([7])))) + odd
    found = parsed(data, *(name.encode() for name in values), b"odd")
    assert sorted(names(data, 0, len(data))) == sorted([*(name.encode() for name in values), b"odd"])
    if "odd" not in values:
        assert found.pop(b"odd").tolist() == [7]
        assert {name.decode(): list(each) for name, each in found.items()} == values


@settings(max_examples=300)
@given(st.binary(max_size=80))
@instance(b"\xff" * 20)
@instance(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
def test_any_bytes_are_features_or_broken(junk: bytes) -> None:
    whole = example({"a": [b"12"], "b": [1.0, 2.0], "c": [*range(40)]})
    for data in (junk, *(whole[:at] + junk + whole[at + len(junk) :] for at in (0, 5, 30, 60))):
        with contextlib.suppress(BrokenExampleError):
            parsed(data, b"a", b"b", b"c")
            names(data, 0, len(data))


def test_numbers_without_an_end_are_broken() -> None:
    for values in (b"\x80", b"\x80" * 40, b"\x80" * 11 + b"\x01", b"\x80" * 20 + b"\x01" * 20):
        data = field(1, field(1, field(1, b"c") + field(2, field(3, field(1, values)))))
        with pytest.raises(BrokenExampleError):
            parsed(data, b"c")
    with pytest.raises(BrokenExampleError, match="ends inside of one"):
        parsed(field(1, field(1, field(1, b"c") + field(2, field(2, field(1, b"123"))))), b"c")


def test_long_lists_of_integers_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once they take fifty times their bytes: gigabytes for one record."""
    monkeypatch.setattr(module, "_PIECE_BYTES", 64)
    largest: list[int] = []
    decode = module._piece
    monkeypatch.setattr(module, "_piece", lambda each: largest.append(len(each)) or decode(each))
    numbers = [(-1) ** n * 3**n for n in range(40)] * 5
    data = b"".join(varint(n & (1 << 64) - 1) for n in numbers)
    assert module._integers(data).tolist() == numbers
    assert 55 <= max(largest) <= 64
    with pytest.raises(module.BrokenExampleError, match="more than 10 bytes"):
        module._integers(data + b"\xff" * 100 + b"\x01")
