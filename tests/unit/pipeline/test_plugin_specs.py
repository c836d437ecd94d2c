"""Plug-ins in specs: data that is checked by what is declared, with a digest of code that only the daemon knows."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepclient.spec import make_spec
from prepserver.pipeline import kinds
from prepserver.pipeline.declared import declared_kind
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import Grayscale, Only, PluginOp, Resize, ToDtype, ToLayout
from prepserver.pipeline.pipeline import MAX_WIRE_BYTES, Pipeline
from prepserver.pipeline.record import Columns
from prepserver.pipeline.sources import Csv, Plugin, source_from_wire
from prepserver.pipeline.spec import Codes
from prepserver.protocol import work
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, encode
from prepserver.protocol.layout import RingLayout, ring_fields
from prepserver.protocol.messages import Attach, Welcome
from prepserver.protocol.schema import MAX_CLASS_NAMES_BYTES
from prepserver.schedule.strikes import MOST_TOLD

COLUMNS: Columns = {
    "image": kinds.Image(size=(8, 6)),
    "depth": kinds.Array((3, 2), "float16"),
    "text": kinds.Text(),
    "ids": kinds.Tokens(4),
    "score": kinds.Scalar("float32"),
    "raw": kinds.Bytes(),
    "label": kinds.Label(),
}
MASKED: Columns = {"image": kinds.Image(), "mask": kinds.Mask(), "label": kinds.Label()}
ODD: dict[str, Any] = {"a b": 1}
LEFT_OUT = [
    PluginOp("spell", column="text", returns=kinds.Scalar("int64")),
    PluginOp("parse", column="raw", returns=kinds.Label()),
]


def after(op: PluginOp, columns: Columns = COLUMNS) -> Columns:
    return op.after({**columns, "index": kinds.Index()})


def test_specs_survive_the_wire_with_parameters_in_order() -> None:
    source = Plugin(
        "mine", columns=COLUMNS, split="train", sizes=(1, (2.5, None)), fast=np.bool_(True).item(), n=np.int64(3)
    )
    assert source_from_wire(source.to_wire()) == source
    assert list(source.params) == ["fast", "n", "sizes", "split"]
    assert source.params["sizes"] == [1, [2.5, None]]
    assert source.location == "mine(fast=True, n=3, sizes=[1, [2.5, None]], split='train')"
    assert (
        source.digest == Plugin("mine", columns=COLUMNS, n=3, fast=True, sizes=[1, [2.5, None]], split="train").digest
    )
    assert len(Plugin("mine", text="x" * 1000).location) == 200
    pipeline = Pipeline.from_ops([PluginOp("blur", sigma=2.0), *LEFT_OUT], columns=source.columns)
    assert Pipeline.from_wire(pipeline.to_wire(), source.columns) == pipeline
    assert [(field.name, field.shape, field.dtype) for field in pipeline.fields] == [
        ("image", (8, 6, 3), "uint8"), ("depth", (3, 2), "float16"), ("text", (), "int64"), ("ids", (4,), "int64"),
        ("score", (), "float32"), ("raw", (), "int64"), ("label", (), "int64"), ("index", (), "int64"),
    ]  # fmt: skip


def test_a_row_has_a_bounded_number_of_fields() -> None:
    columns: Columns = {f"image{n}": kinds.Image(size=(2, 2)) for n in range(33)}
    with pytest.raises(SpecError, match="makes rows of 529 fields, more than 512"):
        Pipeline.from_ops([], 16, columns)
    columns = {f"{n:24}".replace(" ", "x"): kinds.Array((1,) * 8) for n in range(256)}
    with pytest.raises(SpecError, match=r"columns = 24\d+: are more than 16384 bytes in a message: use fewer columns"):
        Pipeline.from_ops([], columns=columns)


def test_many_columns_fit_the_messages() -> None:
    """With the longest names, a full pipeline, and as many class names and known bad samples as may be."""
    columns: Columns = {f"{'é' * 7}{'x' * 14}{n:03}": kinds.Scalar("float64", missing=-1.5) for n in range(256)}
    source, pipeline = Csv("/" + "a" * 1000, columns), Pipeline.from_ops([], columns=columns)
    layout = RingLayout(2**30, ring_fields(pipeline.fields)).to_wire()
    assert RingLayout.from_wire(layout).fields[0].shape == []
    full: Any = [{"op": "x" * MAX_WIRE_BYTES}]
    known, classes = [2**20] * MOST_TOLD, ["x" * 31] * (MAX_CLASS_NAMES_BYTES // 32)
    for message in (
        Attach("a", source.to_wire(), "full", 1, full, 8, True, 0, 1),
        Welcome(1, 2, 3, "d" * 64, 0, 0, 0, layout, classes=classes),
        work.AddStream(1, source.to_wire(), "/" + "b" * 1000, "full", 1, known, ["/" + "c" * 1000] * 4),
        work.AddLane(1, 1, full, layout, known),
    ):
        assert len(encode(message)) <= MAX_MESSAGE_BYTES


def test_a_source_that_does_not_fit_a_message_is_refused() -> None:
    source = Csv("/a", {"x": kinds.Scalar()}, header=["x", *(f"column {n}" for n in range(4000))])
    said = r"source = 'Csv': takes 5\d+ bytes in a message, more than 49152: use fewer sources or columns"
    with pytest.raises(SpecError, match=said):
        source_from_wire(source.to_wire())
    with pytest.raises(SpecError, match=said):
        make_spec(source, [], batch_size=1, shuffle=False, seed=0, drop_last=False)


def test_what_would_not_fit_a_message_is_refused() -> None:
    with pytest.raises(SpecError, match="are 9012 bytes, at most 8192: put them into a file"):
        PluginOp("x", text="x" * 9000)
    ops = [PluginOp("x", text="x" * 8000) for _ in range(4)]
    with pytest.raises(SpecError, match=r"takes 32\d* bytes, more than 24576"):
        Pipeline.from_ops(ops, columns={"image": kinds.Image(size=(8, 6))})


def test_the_order_of_columns_is_part_of_a_source() -> None:
    turned = dict(reversed(list(COLUMNS.items())))
    assert Plugin("mine", columns=turned).digest != Plugin("mine", columns=COLUMNS).digest
    assert list(Plugin("mine").columns) == ["image", "label"]


def test_the_code_of_plugins_is_part_of_the_digests() -> None:
    codes: Codes = {("op", "blur"): "aa", ("source", "mine"): "bb"}
    source = Plugin("mine", columns=COLUMNS, split="x")
    assert source.with_code(codes).code == "bb"
    assert source.with_code(codes).digest != source.digest
    assert source.with_code(codes).with_code(codes) == source.with_code(codes)
    pipeline = Pipeline.from_ops([Resize((4, 4)), PluginOp("blur")])
    coded = pipeline.with_code(codes)
    assert (pipeline.code, len(coded.code)) == ("", 64)
    assert coded.digest != pipeline.digest
    assert coded.code != pipeline.with_code({("op", "blur"): "ab"}).code
    plain = Pipeline.from_ops([Resize((4, 4))])
    assert plain.with_code(codes) is plain


@pytest.mark.parametrize(
    ("spec", "field", "said"),
    [
        (PluginOp("sharpen"), "pipeline[1].name", "is no op plug-in that is loaded; loaded are: blur, dim"),
        (PluginOp("mine"), "pipeline[1].name", "is no op plug-in that is loaded"),
        (PluginOp("blur", code="cc"), "pipeline[1].code", "op plug-in 'blur' has aa"),
    ],
)
def test_what_is_not_loaded_is_refused(spec: PluginOp, field: str, said: str) -> None:
    codes: Codes = {("op", "dim"): "aa", ("op", "blur"): "aa", ("source", "mine"): "bb"}
    with pytest.raises(SpecError, match=said) as caught:
        Pipeline.from_ops([spec], columns={"image": kinds.Image(size=(8, 6))}).with_code(codes)
    assert caught.value.field == field
    with pytest.raises(SpecError, match="loaded are: none"):
        Plugin("mine").with_code({})


@pytest.mark.parametrize(
    ("before", "op", "result"),
    [
        ("image", PluginOp("x"), kinds.Image(size=(8, 6))),
        ("image", PluginOp("x", returns=kinds.Image()), kinds.Image(size=(8, 6))),
        ("image", PluginOp("x", returns=kinds.Image(size=(4, 4), channels=1)), kinds.Image(size=(4, 4), channels=1)),
        (
            "image",
            PluginOp("x", returns=kinds.Image(dtype="float32")),
            kinds.Image((8, 6), dtype="float32", top=math.inf),
        ),
        ("text", PluginOp("x", column="text", returns=kinds.Tokens(3)), kinds.Tokens(3)),
        ("text", PluginOp("x", column="text"), kinds.Text()),
        ("depth", PluginOp("x", column="depth", returns=kinds.Bytes()), kinds.Bytes()),
    ],
)
def test_the_kind_afterwards_is_the_declared_one(before: str, op: PluginOp, result: kinds.Kind) -> None:
    assert after(op)[before] == result
    assert {name: kind for name, kind in after(op).items() if name not in (before, "index")} == {
        name: kind for name, kind in COLUMNS.items() if name != before
    }


@pytest.mark.parametrize(
    ("op", "names"),
    [
        (PluginOp("x", column=["depth", "score"]), list(COLUMNS)),
        (PluginOp("x", column="text", returns={"a": kinds.Tokens(), "text": kinds.Text()}),
         ["image", "depth", "a", "text", "ids", "score", "raw", "label"]),
        (PluginOp("x", column=("raw", "text"), returns={"kind": kinds.Label()}),
         ["image", "depth", "ids", "score", "kind", "label"]),
    ],
)  # fmt: skip
def test_columns_are_made_together(op: PluginOp, names: list[str]) -> None:
    """In place of the first one; the others go."""
    found = after(op)
    assert list(found) == [*names, "index"]
    made = dict(op.returns) if isinstance(op.returns, tuple) else {}
    assert found == {**{name: COLUMNS[name] for name in names if name in COLUMNS}, **made, "index": kinds.Index()}
    assert PluginOp.from_params({name: value for name, value in op.to_wire().items() if name != "op"}) == op


@pytest.mark.parametrize(
    ("op", "columns", "said"),
    [
        (PluginOp("x", column=["depth", "nothing"]), COLUMNS, "column = 'nothing': is no column here, or lies on an"),
        (PluginOp("x", column=["depth", "index"]), COLUMNS, "column = 'index': is no column here"),
        (PluginOp("x", column=["depth", "image"]), COLUMNS, "there are: depth, text, ids, score, raw, label"),
        (PluginOp("x", column="text", returns={"ids": kinds.Tokens()}), COLUMNS, "the name of another column"),
        (PluginOp("x", column="text", returns={"a": kinds.Mask()}), COLUMNS, "cannot be of the kind Mask: only a"),
        (PluginOp("x", column="nothing"), COLUMNS, "is no column here"),
        (PluginOp("x", column="index"), COLUMNS, "is no column here"),
        (PluginOp("x"), {"label": kinds.Label()}, "there is no image"),
        (PluginOp("x", column="mask"), MASKED, "is of kind Mask, which follows its image"),
        (
            PluginOp("x", returns=kinds.Image(size=(4, 4))),
            MASKED,
            "changes the size, and mask cannot follow",
        ),
        (PluginOp("x", returns=kinds.Label()), COLUMNS, "an image stays an image"),
        (PluginOp("x", column="text", returns=kinds.Image(size=(4, 4))), COLUMNS, "an image stays an image"),
        (PluginOp("x", column="text", returns=kinds.Mask()), COLUMNS, "an image stays an image"),
    ],
)
def test_what_cannot_follow_is_refused_at_once(op: PluginOp, columns: Columns, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        after(op, columns)


def test_ops_and_plugins_keep_their_rules_together() -> None:
    image: Columns = {"image": kinds.Image()}
    with pytest.raises(SpecError, match="names no column by itself"):
        Only("image", PluginOp("x"))
    with pytest.raises(SpecError, match="works on uint8"):
        Pipeline.from_ops([PluginOp("x", returns=kinds.Image((4, 4), dtype="float32")), Grayscale()], columns=image)
    with pytest.raises(SpecError, match="cannot follow ToLayout"):
        Pipeline.from_ops([Resize((4, 4)), ToLayout("CHW"), PluginOp("x")], columns=image)
    made = Pipeline.from_ops([PluginOp("x", returns=kinds.Image((4, 4))), ToDtype("float32")], 2, image)
    assert [field.name for field in made.fields] == ["image", "image_1", "index"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PluginOp(""), "must be the name of a plug-in"),
        (lambda: PluginOp("x" * 65), "must be the name of a plug-in"),
        (lambda: PluginOp(3), "must be the name of a plug-in"),  # type: ignore[arg-type]
        (lambda: Plugin(Pipeline), r'Write "Pipeline"; ".*\.pipeline:Pipeline" among'),  # type: ignore[arg-type]
        (lambda: PluginOp("x", code="../"), "must be a digest"),
        (lambda: PluginOp("x", column=3), "must be the name of a column"),  # type: ignore[arg-type]
        (lambda: PluginOp("x", column=[]), "1 to 256 names"),
        (lambda: PluginOp("x", column=["a", 3]), "must be the name of a column"),  # type: ignore[list-item]
        (lambda: PluginOp("x", column=["a", "a"]), "names a column twice"),
        (lambda: PluginOp("x", column=["a", "b"], returns=kinds.Label()), "must be a map of names to kinds"),
        (lambda: PluginOp("x", returns={"a": kinds.Label()}), "must name the columns from which the function makes"),
        (lambda: PluginOp("x", column="a", returns={"a": 3}), "must be one of the kinds"),
        (lambda: PluginOp("x", returns=kinds.BoxCount()), "must be one of the kinds"),
        (lambda: PluginOp("x", returns=kinds.Image), "must be one of the kinds"),  # type: ignore[arg-type]
        (lambda: PluginOp("x", returns=kinds.Image(channels=0)), "must lie between 1 and 1024"),
        (lambda: PluginOp("x", returns=kinds.Image(dtype="int64")), "must be 'uint8' or"),
        (lambda: PluginOp("x", returns=kinds.Array((1,) * 9)), "must be a list of 1 to 8"),
        (lambda: PluginOp("x", returns=kinds.Array((0,))), "must lie between 1"),
        (lambda: PluginOp("x", returns={"kind": "Array", "shape": None}), "has the attributes shape, dtype"),
        (lambda: PluginOp("x", returns={"kind": "Bytes", "size": None}), r"has the attributes \(none\)"),
        (lambda: PluginOp("x", f=len), "must be a finite number of 64 bits"),
        (lambda: PluginOp("x", f=float("nan")), "must be a finite number of 64 bits"),
        (lambda: PluginOp("x", f=2**63), "must be a finite number of 64 bits"),
        (lambda: PluginOp("x", f=[[[[1]]]]), "lists of these, 3 deep"),
        (lambda: PluginOp("x", **ODD), "names of parameters are identifiers"),
        (lambda: Plugin("x", columns={}), "must be 1 to 256 different columns"),
        (lambda: Plugin("x", columns={f"c{n}": kinds.Label() for n in range(257)}), "columns = 257: are more than 256"),
        (lambda: Plugin("x", columns=3), "must be a map of names to kinds"),  # type: ignore[arg-type]
        (lambda: Plugin("x", columns={"c" * 25: kinds.Label()}), "must be the name of a column"),
        (lambda: Plugin("x", columns={"index": kinds.Label()}), "identifier and none of index"),
        (lambda: Plugin("x", columns={"image": kinds.BoxCount()}), "must be one of the kinds"),
        (lambda: Plugin("x", columns=[{"kind": "Label"}]), "must be the name of a column"),
        (lambda: Plugin("x", columns=[{"column": "a", "kind": "Label"}] * 2), "different columns"),
    ],
)
def test_what_cannot_travel_is_refused(make: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"column": "image", "columns": 3}, "has no such parameter"),
        ({"code": None}, "must be a digest"),
        ({"params": [1]}, "must be a map"),
        ({"params": {"code": 1}}, "and none of column, returns, block, code"),
        ({"params": {3: 1}}, "are identifiers"),
    ],
)
def test_a_wire_form_with_more_or_less_is_refused(change: dict[str, Any], said: str) -> None:
    wire = PluginOp("x").to_wire() | change
    with pytest.raises(SpecError, match=said):
        Pipeline.from_wire([wire])
    del wire["name"]
    with pytest.raises(SpecError):
        Pipeline.from_wire([wire])


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["Image", "Array"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["kind", "size", "shape", "dtype", "column", "a"]) | st.text(max_size=4), inner
        )
    ),
    max_leaves=12,
)


@given(
    st.fixed_dictionaries(
        {"name": JUNK, "params": JUNK, "column": JUNK, "returns": JUNK, "code": JUNK, "columns": JUNK}
    )
)
def test_nothing_that_a_client_sends_does_more_than_be_refused(junk: dict[str, Any]) -> None:
    op = {key: value for key, value in junk.items() if key != "columns"}
    source = {key: value for key, value in junk.items() if key not in ("column", "returns")}
    for build in (
        lambda: Pipeline.from_wire([{"op": "PluginOp", **op}]),
        lambda: source_from_wire({"source": "Plugin", **source}),
    ):
        loaded = set(sys.modules)
        with contextlib.suppress(SpecError):
            build()
        assert set(sys.modules) == loaded


def test_an_array_of_any_shape_can_be_declared() -> None:
    assert declared_kind("columns", kinds.Array()) == kinds.Array()


def test_blocks_are_for_samples_without_images() -> None:
    with pytest.raises(SpecError, match="name them by column="):
        PluginOp("x", block=True)
    for column, returns in (("text", kinds.Label()), (["text", "label"], None)):
        with pytest.raises(SpecError, match="samples without images"):
            after(PluginOp("x", column=column, returns=returns, block=True))
    op = PluginOp("x", column=["a", "b"], block=True)
    assert op.after({"a": kinds.Text(), "b": kinds.Label()}) == {"a": kinds.Text(), "b": kinds.Label()}
