"""Pipelines: wire form, digest, the shape of their rows, and what cannot follow what."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prepclient import MixUp
from prepclient.finish import Finish, looks_of
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Boxes, Image, Label, Mask, Scalar, Text
from prepserver.pipeline.ops import (
    CenterCrop,
    ColorJitter,
    Decode,
    FiveCrop,
    Grayscale,
    Mosaic,
    Normalize,
    Only,
    Op,
    Pad,
    PadBoxes,
    RandomApply,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import MAX_OPS, MAX_VIEWS, Pipeline
from prepserver.pipeline.record import Columns
from prepserver.protocol.schema import Trees, build
from tests.support.waiting import PATIENCE_S

sides = st.integers(1, 500)
sizes = sides | st.tuples(sides, sides) | st.lists(sides, min_size=1, max_size=2)
probabilities = st.floats(0, 1) | st.integers(0, 1)
shares = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted)
ratios = st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)).map(sorted)
modes = st.sampled_from(["constant", "edge", "reflect", "symmetric"])
margins = st.integers(0, 50) | st.lists(st.integers(0, 50), min_size=4, max_size=4)
filters = st.sampled_from(["bilinear", "bicubic"])
byte_ops: st.SearchStrategy[Op] = st.one_of(
    st.builds(RandomResizedCrop, sizes, shares, ratios, filters),
    st.builds(Resize, sizes),
    st.just(Resize(None, max_size=640)),
    st.builds(CenterCrop, sizes),
    st.builds(RandomCrop, sizes, st.none() | margins, st.just(True), st.integers(0, 255), modes),
    st.builds(Pad, margins, st.integers(0, 255), modes),
    st.builds(RandomHorizontalFlip, probabilities),
    st.builds(RandomVerticalFlip, probabilities),
    st.builds(ColorJitter, st.floats(0, 2), st.integers(0, 2), st.floats(0, 2), st.floats(0, 0.5)),
    st.just(Grayscale(3)),
)
floats: st.SearchStrategy[list[Op]] = st.one_of(
    st.just([]),
    st.builds(lambda mean, std: [ToDtype("float32"), Normalize([mean], [std])], st.floats(-1, 1), st.floats(0.1, 2)),
)
ends: st.SearchStrategy[list[Op]] = st.sampled_from([[], [ToLayout("CHW")], [ToLayout("HWC")]])


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    middle = draw(st.lists(byte_ops, max_size=6))
    first: list[Op] = draw(st.sampled_from([[], [Decode(False, 1000)]]))
    try:
        ops = [*first, *middle, CenterCrop(8), *draw(floats), *draw(ends)]
        return Pipeline.from_ops(ops, draw(st.integers(1, MAX_VIEWS)))
    except SpecError:
        assume(False)
        raise


@given(pipelines())
def test_a_pipeline_comes_back_from_the_wire_as_it_was(pipeline: Pipeline) -> None:
    again = Pipeline.from_wire(json.loads(json.dumps(pipeline.to_wire())))
    assert again == pipeline
    assert again.digest == pipeline.digest
    assert again.row == pipeline.row
    assert again.views == pipeline.views


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
op_maps = st.fixed_dictionaries(
    {"op": st.sampled_from(["Decode", "RandomResizedCrop", "Resize", "Pad", "ColorJitter", "Normalize"])},
    optional=dict.fromkeys(("size", "scale", "padding", "fill", "mean", "std", "hue", "op2"), json_values),
)


@given(json_values | st.lists(op_maps | json_values, max_size=4))
def test_anything_from_the_wire_is_a_pipeline_or_a_spec_error(wire: Any) -> None:
    field, nbytes = "pipeline", 1
    try:
        nbytes = Pipeline.from_wire(wire).row.nbytes
    except SpecError as error:
        field = error.field
    assert field.startswith("pipeline")
    assert nbytes > 0


def test_decode_is_implied_at_the_start() -> None:
    assert Pipeline.from_ops([CenterCrop(8)]) == Pipeline.from_ops([Decode(), CenterCrop(8)])


def test_the_digest_sees_meaning_not_spelling() -> None:
    one = Pipeline.from_ops([RandomResizedCrop(224, scale=(0, 1)), RandomHorizontalFlip(1)])
    same = Pipeline.from_ops([RandomResizedCrop((224, 224), scale=[0.0, 1.0]), RandomHorizontalFlip(1.0)])
    other = Pipeline.from_ops([RandomResizedCrop(224, scale=(0, 1)), RandomHorizontalFlip(0.5)])
    assert one.digest == same.digest != other.digest
    assert len(one.digest) == 64


def test_a_pipeline_of_one_view_is_spelled_as_one_without_views() -> None:
    plain = Pipeline.from_ops([RandomResizedCrop(224), RandomHorizontalFlip()])
    assert plain.digest == "8ea02590e27e98e9a958196ec47bb4e443c0410ca98078e7eacc74a2d12c7bb5"
    assert Pipeline.from_ops(plain.ops, 1) == plain
    assert Pipeline.from_wire([*plain.to_wire(), {"views": 1}]).to_wire() == plain.to_wire()
    pair = Pipeline.from_ops(plain.ops, 2)
    assert pair.to_wire() == [*plain.to_wire(), {"views": 2}]
    assert (pair.ops, pair.row, pair.views) == (plain.ops, plain.row, 2)
    assert pair != plain
    assert len({Pipeline.from_ops(plain.ops, views).digest for views in range(1, MAX_VIEWS + 1)}) == MAX_VIEWS


def test_views_may_have_other_numbers_than_the_first() -> None:
    plain = Pipeline.from_ops([CenterCrop(8)])
    for numbers in (range(1, 2), range(2, 8), range(15, 16), range(16)):
        pipeline = Pipeline.from_ops(plain.ops, numbers)
        assert (pipeline.views, pipeline.first_view, pipeline.numbers) == (len(numbers), numbers.start, numbers)
        assert Pipeline.from_wire(pipeline.to_wire()) == pipeline
        assert pipeline.digest != plain.digest
    assert Pipeline.from_ops(plain.ops, range(2)) == Pipeline.from_ops(plain.ops, 2)
    assert Pipeline.from_ops(plain.ops, range(1)).to_wire() == plain.to_wire()


@pytest.mark.parametrize("views", [range(0), range(5, 2), range(-1, 2), range(0, 4, 2), range(10, 17)])
def test_numbers_of_views_that_cannot_be_are_refused(views: range) -> None:
    with pytest.raises(SpecError, match="must be a number, or a range of numbers from 0 to 15") as caught:
        Pipeline.from_ops([CenterCrop(8)], views)
    assert caught.value.field == "views"


@pytest.mark.parametrize(("first", "said"), [(16, "between 0 and 15"), ("2", "an integer"), (15, "from 0 to 15")])
def test_a_first_view_that_cannot_be_is_refused(first: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Pipeline.from_wire([{"op": "CenterCrop", "size": 8}, {"views": 2, "first_view": first}])


def test_crops_of_corners_are_the_first_views() -> None:
    with pytest.raises(SpecError, match="must be 5: FiveCrop makes 5 views"):
        Pipeline.from_ops([FiveCrop(8)], range(1, 6))


def test_views_of_rows_without_an_image_are_refused() -> None:
    with pytest.raises(SpecError, match="views = 2: makes several images of each sample, and the rows have no image"):
        Pipeline.from_ops([], 2, {"x": Scalar()})


@pytest.mark.parametrize("views", [0, -1, MAX_VIEWS + 1, 2.0, True, "2", None])
def test_a_number_of_views_that_cannot_be_is_refused(views: Any) -> None:
    said = "must be an integer" if type(views) is not int else "must lie between 1 and 16"
    with pytest.raises(SpecError, match=said) as caught:
        Pipeline.from_ops([CenterCrop(8)], views)
    assert caught.value.field == "views"
    with pytest.raises(SpecError, match=said) as caught:
        Pipeline.from_wire([{"op": "CenterCrop", "size": 8}, {"views": views}])
    assert caught.value.field == "pipeline[1].views"


@dataclasses.dataclass(frozen=True)
class _Message:
    pipeline: Trees


def test_the_longest_pipeline_fits_a_message() -> None:
    longest = Pipeline.from_ops([CenterCrop(8)] * MAX_OPS, MAX_VIEWS)
    assert Pipeline.from_wire(build(_Message, {"pipeline": longest.to_wire()}).pipeline) == longest


def test_the_digest_is_the_same_in_another_process() -> None:
    pipeline = Pipeline.from_ops([RandomResizedCrop(224), ColorJitter(0.4, 0.4, 0.4, 0.1)])
    code = (
        "import json, sys; from prepserver.pipeline.pipeline import Pipeline;"
        "print(Pipeline.from_wire(json.load(sys.stdin)).digest)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(pipeline.to_wire()),
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert answer.stdout.strip() == pipeline.digest


@pytest.mark.parametrize(
    ("ops", "shape", "dtype", "nbytes", "logical"),
    [
        ([RandomResizedCrop((4, 6))], (4, 6, 3), "uint8", 72, "CHW"),
        ([RandomResizedCrop((4, 6)), ToLayout("HWC")], (4, 6, 3), "uint8", 72, "HWC"),
        ([RandomResizedCrop((4, 6)), ToLayout("CHW")], (3, 4, 6), "uint8", 72, "CHW"),
        ([Resize(8), CenterCrop((4, 6)), Grayscale()], (4, 6, 1), "uint8", 24, "CHW"),
        ([Resize((4, 6)), Pad((1, 2)), ToDtype("float16")], (8, 8, 3), "float16", 384, "CHW"),
        ([Resize((4, 6)), Resize(8), ToDtype("float32", scale=False)], (8, 12, 3), "float32", 1152, "CHW"),
        ([CenterCrop(2), ToDtype("float32"), ToDtype("float16")], (2, 2, 3), "float16", 24, "CHW"),
    ],
)
def test_the_row_has_the_shape_that_the_ops_give(
    ops: list[Op], shape: tuple[int, ...], dtype: str, nbytes: int, logical: str
) -> None:
    pipeline = Pipeline.from_ops(ops)
    assert (pipeline.row.shape, pipeline.row.dtype, pipeline.row.nbytes) == (shape, dtype, nbytes)
    assert looks_of(pipeline, Finish())[0].seen == logical


@pytest.mark.parametrize(
    ("ops", "field"),
    [
        ([Resize(256)], "pipeline"),
        ([], "pipeline"),
        ([Pad(3), RandomHorizontalFlip()], "pipeline"),
        ([CenterCrop(8), Decode()], "pipeline[1].op"),
        ([Decode(), Decode(), CenterCrop(8)], "pipeline[1].op"),
        ([CenterCrop(8), ToLayout("CHW"), RandomHorizontalFlip()], "pipeline[2].op"),
        ([CenterCrop(8), Normalize([0.5], [0.5])], "pipeline[1].mean"),
        ([CenterCrop(8), Grayscale(1), ToDtype("float32"), Normalize([0, 0, 0], [1])], "pipeline[3].mean"),
        ([CenterCrop(8), ToDtype("float32"), ToDtype("uint8")], "pipeline[2].dtype"),
        ([CenterCrop(8), ToDtype("float32"), ColorJitter(0.5)], "pipeline[2].op"),
        ([CenterCrop(8), RandomCrop(9)], "pipeline[1].size"),
        ([CenterCrop(8), Pad(1, fill=0.5)], "pipeline[1].fill"),
        ([CenterCrop(8), Pad(1, fill=256)], "pipeline[1].fill"),
        ([CenterCrop(8), Grayscale(), Pad(1, fill=(1, 2, 3))], "pipeline[2].fill"),
        ([CenterCrop(16384), Pad(1)], "pipeline"),
        ([CenterCrop(8), "flip"], "pipeline[1]"),
        ([CenterCrop], "pipeline[0]"),
        ([CenterCrop(8), MixUp(5)], "pipeline[1]"),
        ([CenterCrop(8), ToDtype("float32", scale=True), Normalize([123.0], [58.0])], "pipeline[2].mean"),
        ([CenterCrop(8)] * 65, "pipeline"),
        ([CenterCrop(8)] * 67, "pipeline"),
    ],
)
def test_ops_that_cannot_work_together_are_refused_by_place(ops: list[Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        Pipeline.from_ops(ops)
    assert caught.value.field == field


def test_a_row_of_no_fixed_shape_is_refused_with_what_to_do() -> None:
    with pytest.raises(SpecError, match=r"^pipeline = \['Resize'\]: column 'image': .*end with CenterCrop"):
        Pipeline.from_ops([Resize(256)])
    with pytest.raises(SpecError, match=r"Resize\(None, max_size=n\), CenterCrop\(n\) instead cuts no boxes off"):
        Pipeline.from_ops([Resize(256), PadBoxes(3)], columns={"image": Image(), "boxes": Boxes()})
    with pytest.raises(SpecError, match=r"column 'title': text has no fixed size"):
        Pipeline.from_ops([], columns={"title": Text(), "label": Label()})


def test_an_array_of_any_shape_needs_an_op_that_gives_it_one() -> None:
    with pytest.raises(SpecError, match=r"column 'points': its arrays .* add PadArray.* or a PluginOp with returns="):
        Pipeline.from_ops([], columns={"points": Array()})


@pytest.mark.parametrize("op", [CenterCrop(8), RandomHorizontalFlip(), ToDtype("float32")])
def test_an_op_that_would_change_nothing_is_refused(op: Op) -> None:
    """The pixels of an array that is not declared an image would go into the rows as they are."""
    with pytest.raises(
        SpecError, match=r"needs an image or a mask; a sample has x \(Array\), index .* columns="
    ) as caught:
        Pipeline.from_ops([op], columns={"x": Array((32, 32, 3), "uint8")})
    assert (caught.value.field, caught.value.value) == ("pipeline[0].op", type(op).__name__)
    Pipeline.from_ops([CenterCrop(8)], columns={"seg": Mask()})


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        (None, "pipeline"),
        ({"op": "CenterCrop", "size": 8}, "pipeline"),
        ([7], "pipeline[0]"),
        ([{1: 2}], "pipeline[0]"),
        ([{"size": 8}], "pipeline[0].op"),
        ([{"op": "Lambda"}], "pipeline[0].op"),
        ([{"op": ["CenterCrop"], "size": 8}], "pipeline[0].op"),
        ([{"op": "CenterCrop"}], "pipeline[0].size"),
        ([{"op": "Decode"}, {"op": "CenterCrop", "size": 8, "self": 1}], "pipeline[1].self"),
        ([{"op": "Decode"}, {"op": "RandomResizedCrop", "size": 8, "scale": [2, 3]}], "pipeline[1].scale"),
        ([{"op": "CenterCrop", "size": float("nan")}], "pipeline[0].size"),
        ([{"op": "CenterCrop", "size": 2**70}], "pipeline[0].size"),
        ([{"views": 2}, {"op": "CenterCrop", "size": 8}], "pipeline[0].op"),
        ([{"op": "CenterCrop", "size": 8}, {"views": 2, "more": 1}], "pipeline[1].op"),
        ([{"op": "CenterCrop", "size": 8}, {"views": 2}, {"views": 2}], "pipeline[1].op"),
        ([{"views": 2}], "pipeline"),
    ],
)
def test_a_wrong_wire_form_is_refused_by_its_field(wire: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        Pipeline.from_wire(wire)
    assert caught.value.field == field


COLUMNS: Columns = {"left": Image(), "mask": Mask(), "weight": Scalar(), "label": Label()}


def test_a_row_has_a_field_for_each_column_and_view() -> None:
    pipeline = Pipeline.from_ops([CenterCrop(8)], 2, COLUMNS)
    names = ["left", "left_1", "mask", "mask_1", "weight", "label", "index"]
    assert [field.name for field in pipeline.fields] == names
    assert pipeline.row.name == "left"
    assert pipeline.decode == Decode()


def test_a_pipeline_of_no_image_has_no_first_image() -> None:
    pipeline = Pipeline.from_ops([], columns={"label": Label()})
    assert [field.name for field in pipeline.fields] == ["label", "index"]
    with pytest.raises(SpecError, match="makes no image"):
        _ = pipeline.row


@pytest.mark.parametrize("name", ["index", "valid", "two words", "4", ""])
def test_a_reserved_or_impossible_name_of_a_column_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="must be an identifier and none of index, valid"):
        Pipeline.from_ops([CenterCrop(8)], columns={name: Image()})


def test_a_column_that_is_called_like_a_view_is_refused() -> None:
    columns: Columns = {"image": Image(), "image_1": Label()}
    assert len(Pipeline.from_ops([CenterCrop(8)], 1, columns).fields) == 3
    with pytest.raises(SpecError, match="is the name of two fields where a sample has 2 views"):
        Pipeline.from_ops([CenterCrop(8)], 2, columns)


def test_an_op_for_one_column_changes_that_one_only() -> None:
    columns: Columns = {"left": Image(), "right": Image()}
    pipeline = Pipeline.from_ops([CenterCrop(8), Only("left", Grayscale(1))], 1, columns)
    assert [field.shape for field in pipeline.fields] == [(8, 8, 1), (8, 8, 3), ()]
    assert Pipeline.from_wire(pipeline.to_wire(), columns) == pipeline


@pytest.mark.parametrize(
    ("only", "field"),
    [
        (lambda: Only(3, Grayscale()), "column"),  # type: ignore[arg-type]
        (lambda: Only("left", "flip"), "inner"),  # type: ignore[arg-type]
        (lambda: Only("left", Only("left", Grayscale())), "inner"),
        (lambda: Pipeline.from_ops([CenterCrop(8), Only("right", Grayscale())], 1, COLUMNS), "pipeline[1].column"),
        (lambda: Pipeline.from_ops([CenterCrop(8), Only("label", Grayscale())]), "pipeline[1].column"),
    ],
)
def test_an_op_for_one_column_says_what_it_cannot_do(only: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        only()
    assert caught.value.field == field


TWO_CAMERAS: Columns = {"top": Image((24, 32)), "wrist": Image((16, 16))}


def test_images_of_different_sizes_are_moved_apart() -> None:
    pipeline = Pipeline.from_ops([], 1, TWO_CAMERAS)
    assert pipeline.apart
    assert [field.shape for field in pipeline.fields] == [(24, 32, 3), (16, 16, 3), ()]
    assert not Pipeline.from_ops([CenterCrop(8)], 1, {"top": Image((24, 32)), "wrist": Image()}).apart


def test_an_op_that_moves_one_image_moves_it_apart() -> None:
    columns: Columns = {"top": Image((24, 32)), "wrist": Image((24, 32))}
    pipeline = Pipeline.from_ops(
        [Only("wrist", RandomApply([RandomHorizontalFlip()])), Only("wrist", Resize((6, 6)))], 1, columns
    )
    assert pipeline.apart
    assert [field.shape for field in pipeline.fields] == [(24, 32, 3), (6, 6, 3), ()]
    assert Pipeline.from_wire(pipeline.to_wire(), columns) == pipeline
    assert not Pipeline.from_ops([Only("wrist", Grayscale(1))], 1, columns).apart


@pytest.mark.parametrize(
    ("ops", "columns", "named"),
    [
        ([CenterCrop(8)], {**TWO_CAMERAS, "mask": Mask()}, ["mask"]),
        ([Only("image", CenterCrop(8))], {"image": Image(), "mask": Mask()}, ["mask"]),
        ([Mosaic((8, 8))], TWO_CAMERAS, ["Mosaic"]),
    ],
)
def test_nothing_follows_images_that_are_moved_apart(ops: list[Op], columns: Columns, named: list[str]) -> None:
    with pytest.raises(SpecError, match="cannot be where each image is moved by itself") as caught:
        Pipeline.from_ops(ops, 1, columns)
    assert caught.value.value == named
