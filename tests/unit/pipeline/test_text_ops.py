"""Ops on text as data: the columns that they make, the file that is part of them, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Json, Kind, Label, Scalar, Text, Tokens
from prepserver.pipeline.ops import MaskTokens, PadArray, PadTokens, Tokenize, Truncate, op_from_wire
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.pipeline.sources import BucketByLength, Jsonl, PackTokens, TextLines
from prepserver.pipeline.spec import FILE

LINES = TextLines("/lines.txt")
TEXT: Columns = {"text": Text(), "label": Label()}
TOKENS = {"tokens": Tokens(), "label": Label()}


@pytest.mark.parametrize(
    ("columns", "op", "field"),
    [
        (TEXT, Tokenize("/a", column="label"), "column"),
        (TEXT, Tokenize("/a", column="nope"), "column"),
        (TEXT, Tokenize("/a", into="label"), "into"),
        (TEXT, Tokenize("/a", into="valid"), "into"),
        (TEXT, Truncate(5), "column"),
        ({"text": Json()}, Tokenize("/a"), "column"),
        (TEXT, PadTokens(5), "column"),
        (TOKENS, PadTokens(5, mask="label"), "mask"),
        ({"tokens": Tokens(), "length": Label()}, PadTokens(5, trim=True), "count"),
        ({"tokens": Tokens(9), "m": Array((9,), beside="tokens")}, Truncate(5), "length"),
        (PadTokens(9, count="n").after(TOKENS), Truncate(5), "length"),
        (TOKENS, PadTokens(5, mask="tokens"), "mask"),
        (TOKENS, Truncate(5, ["tokens", "label"]), "column"),
        (TOKENS, PadArray(5, "tokens"), "column"),
        ({"x": Array((9, 2)), "m": Array((9,), beside="x")}, Truncate(5, "x"), "length"),
        ({"x": Array((9, 2))}, PadArray(9, "x"), "shape"),
        ({"x": Array((9, 2))}, PadArray((8, 2), "x"), "shape"),
        ({"x": Array(None, "uint8")}, PadArray(9, "x", -1), "value"),
        ({"x": Array(None, "int64")}, PadArray(9, "x", 0.5), "value"),
        ({"x": Array(None, "float16")}, PadArray(9, "x", 1e9), "value"),
        (TOKENS, PadTokens(5, count="mask"), "count"),
        (TOKENS, MaskTokens(1, 9), "column"),
        ({"tokens": Tokens(5), "label": Label()}, MaskTokens(1, 9, labels="label"), "labels"),
    ],
)
def test_an_op_without_its_column_is_refused(columns: dict[str, Kind], op: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        Pipeline.from_ops([op], columns=columns)
    assert caught.value.field == f"pipeline[0].{field}"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Truncate(0), "length"),
        (lambda: Truncate(5, side="up"), "side"),  # type: ignore[arg-type]
        (lambda: Truncate(5, []), "column"),
        (lambda: Truncate(5, ["x", "x"]), "column"),
        (lambda: PadArray((), "x"), "shape"),
        (lambda: PadArray((5, 0), "x"), "shape"),
        (lambda: PadArray(5, "x", float("nan")), "value"),
        (lambda: PadTokens(5, pad=2**63), "pad"),
        (lambda: PadTokens(5, mask="a b"), "mask"),
        (lambda: PadTokens(5, side="up"), "side"),  # type: ignore[arg-type]
        (lambda: PadTokens(5, side="left", trim=True), "trim"),
        (lambda: PadTokens(5, count="x" * 25), "count"),
        (lambda: Tokenize("/a", max_tokens=0), "max_tokens"),
        (lambda: Tokenize("/a", end=-1), "end"),
        (lambda: Tokenize("/a", code="../"), "code"),
        (lambda: Tokenize("/a", max_tokens=2, begin=1, end=2), "max_tokens"),
        (lambda: Tokenize("/a", unknown=""), "unknown"),
        (lambda: PackTokens(LINES, Truncate(5), 8), "tokenize"),  # type: ignore[arg-type]
        (lambda: PackTokens(LINES, Tokenize("/a", max_tokens=9), 8), "tokenize.max_tokens"),
        (lambda: PackTokens(LINES, Tokenize("/a", into="labels"), 8), "tokenize.into"),
        (lambda: PackTokens(LINES, "text", 8), "column"),
        (lambda: PackTokens(LINES, "nope", 8), "column"),
        (lambda: PackTokens(Jsonl("/a", {"labels": Tokens()}), "labels", 8), "tokenize.into"),
        (lambda: PackTokens(LINES, Tokenize("/a"), 7), "length"),
        (lambda: PackTokens(LINES, Tokenize("/a"), 8, beside=["words"]), "beside"),
        (lambda: PackTokens(LINES, Tokenize("/a", column="nope"), 8), "column"),
        (lambda: BucketByLength(LINES, "label"), "column"),
        (lambda: op_from_wire(Tokenize("/a").to_wire() | {"path": "a"}), "path"),
    ],
)
def test_a_parameter_that_cannot_be_is_named(make: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.field == field


def test_kinds_are_known_before_any_sample_is_read() -> None:
    pipeline = Pipeline.from_ops([Truncate(3), PadTokens(5, count="n")], columns=TOKENS)
    assert [(field.name, field.kind) for field in pipeline.fields[:3]] == [
        ("tokens", Tokens(5)), ("mask", Array((5,), "uint8")), ("n", Scalar("int64")),
    ]  # fmt: skip
    for op, wire in (
        (Truncate(3), {"op": "Truncate", "length": 3, "column": "tokens"}),
        (Truncate(3, side="left"), {"op": "Truncate", "length": 3, "column": "tokens", "side": "left"}),
    ):
        assert op.to_wire() == wire  # that of earlier releases, where it had no side
        assert op_from_wire(wire) == op
        cut = Pipeline.from_ops([op], columns={"tokens": Tokens(9)})
        assert cut.fields[0].kind == Tokens(3)
    for ops, said in (([], "put Tokenize"), ([Tokenize("/a")], "end with Truncate")):
        with pytest.raises(SpecError, match=said):
            Pipeline.from_ops(ops, columns=TEXT)


def test_shapes_of_arrays_are_known() -> None:
    ops = [Truncate(3, ["x", "y"], "random"), PadArray((3, 2), "x", count="n", mask="m", trim=True)]
    columns = {"x": Array(), "y": Array((9, 4), "int8")}
    pipeline = Pipeline.from_ops(ops, columns=columns)
    assert {field.name: field.shape for field in pipeline.fields} == {
        "x": (3, 2), "m": (3,), "n": (), "y": (3, 4), "index": (),
    }  # fmt: skip
    assert pipeline.trims == {"x": "n", "m": "n"}
    assert Pipeline.from_wire(pipeline.to_wire(), columns) == pipeline
    with pytest.raises(SpecError, match=r"column 'x': its arrays have no fixed shape: .* add PadArray"):
        Pipeline.from_ops([], columns={"x": Array()})


def test_trimmed_columns_are_known_with_those_made_of_them() -> None:
    ops = [
        PadTokens(5, trim=True), MaskTokens(1, 9, [0]),
        # tokens that no op has filled up have no padding among them, whatever is beside them
        MaskTokens(1, 9, column="other", labels="others"), MaskTokens(1, 9, column="other", labels="more"),
    ]  # fmt: skip
    pipeline = Pipeline.from_ops(ops, columns={"tokens": Tokens(), "other": Tokens(3)})
    assert pipeline.trims == {"tokens": "length", "mask": "length", "labels": "length"}
    assert Pipeline.from_wire(pipeline.to_wire(), pipeline.columns) == pipeline
    assert PadTokens(5, trim=True, count="n", mask=None).trims == {"tokens": "n"}
    assert Pipeline.from_ops([PadTokens(5, count="n")], columns=TOKENS).trims == {}


def test_the_digest_of_a_file_is_part_of_the_pipeline() -> None:
    plain = Pipeline.from_ops([Tokenize("/a.json", into="t"), PadTokens(9, column="t", mask=None)], columns=TEXT)
    assert (plain.files, plain.code) == (["/a.json"], "")
    assert plain.with_code({}) is plain
    known = plain.with_code({(FILE, "/a.json"): "ab"})
    assert known.digest != plain.digest
    assert known.code != plain.code
    assert known.with_code({(FILE, "/a.json"): "ab"}) == known == known.with_code({})
    assert Pipeline.from_wire(known.to_wire(), TEXT) == known
    with pytest.raises(SpecError, match=r"is not the content of /a\.json, which is cd"):
        known.with_code({(FILE, "/a.json"): "cd"})


def test_rows_without_a_sample_are_padding() -> None:
    ops = [PadTokens(6, pad=7), MaskTokens(1, 9, [7]), PadArray(6, "x", -0.5)]
    fields = Pipeline.from_ops(ops, columns={"tokens": Tokens(), "weight": Scalar(), "x": Array()}).fields
    blanks = {each.name: each.kind.blank for each in fields}
    assert blanks == {"tokens": 7, "mask": 0, "weight": 0, "labels": -100, "x": -0.5, "index": -1}


def test_packed_rows_have_the_columns_that_were_asked_for() -> None:
    packed = PackTokens(LINES, Tokenize("/a"), 8, beside=["labels", "positions"])
    assert packed.columns == {
        "tokens": Tokens(8), "positions": Array((8,), "int32"), "labels": Array((8,), "int64"),
    }  # fmt: skip
    assert isinstance(packed.tokenize, Tokenize)
    assert PackTokens(LINES, packed.tokenize.to_wire(), 8).tokenize == packed.tokenize  # type: ignore[arg-type]
    assert ("tokenize", "/a") in packed.named_paths()
    moved = PackTokens(LINES, Tokenize("/b"), 8, beside=["labels", "positions"])
    assert packed.without_paths() == moved.without_paths()
    assert packed.digest != moved.digest
    assert BucketByLength(LINES).columns == LINES.columns
    there = [PackTokens(Jsonl(path, {"ids": Tokens()}), "ids", 8, beside=[]) for path in ("/a", "/b")]
    assert there[0].columns == {"ids": Tokens(8)}
    assert there[0].without_paths() == there[1].without_paths()
    assert there[0].named_paths() == []
