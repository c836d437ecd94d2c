"""Sources of tables and texts as data: what they name, their columns, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Label, Scalar, Text
from prepserver.pipeline.sources import Arrays, Csv, Jsonl, Parquet, TextLines, TFRecord, source_from_wire

ANY: Any = 5


@pytest.mark.parametrize(
    "spec",
    [
        Csv("/a.csv", {"x": Scalar(), "t": Text()}, {"x": "X", "t": "t"}, root="/images", delimiter=";"),
        Csv(["/a.csv", "/b/*.csv"], {"x": Label()}, header=["x", "y"]),
        Jsonl("/{a,b}.jsonl", {"image": Image(), "t": Text()}, {"image": "photo.path"}, root="/images"),
        Parquet("/*.parquet"),
        TextLines(["/a", "/b", "/c"]),
    ],
    ids=str,
)
def test_a_spec_comes_back_from_the_wire(spec: Any) -> None:
    assert source_from_wire(spec.to_wire()) == spec
    assert [name for name, _ in spec.named_paths()].count("path") == len(spec.path)


def test_names_that_are_the_columns_own_are_left_out() -> None:
    assert Csv("/a", {"x": Text()}, {"x": "x"}) == Csv("/a", {"x": Text()})
    assert Csv("/a", {"x": Text()}, {"x": "y"}).names == {"x": "y"}


def test_a_place_is_the_first_path_and_how_many_there_are_more() -> None:
    assert TextLines("/a/*").location == "/a/*"
    assert TextLines("/a/*").columns == {"text": Text()}
    assert TextLines(["/a", "/b", "/c"]).location == "/a and 2 more"
    assert Csv("/a", {"x": Text()}, root="/b").location == "/a"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Csv("/a", {"b": kinds.Boxes()}), "columns.b"),
        (lambda: Csv("/a", {}), "columns"),
        (lambda: Csv("/a", {"index": Text()}), "columns"),
        (lambda: Csv("/a", {"x": Text()}, {"y": "z"}), "names"),
        (lambda: Csv("/a", {"x": Text()}, {"x": ""}), "names"),
        (lambda: Csv("/a", {"x": Text()}, ANY), "names"),
        (lambda: Parquet("/a", names=ANY), "names"),
        (lambda: Csv("/a", {"x": Text()}, delimiter="--"), "delimiter"),
        (lambda: Csv("/a", {"x": Text()}, header=["y"]), "header"),
        (lambda: Csv("/a", {"x": Text()}, header=[]), "header"),
        (lambda: Csv("/a", {"x": Text()}, root=ANY), "root"),
        (lambda: Jsonl([], {"x": Text()}), "path"),
        (lambda: TextLines(["/a"] * 65), "path"),
        (lambda: TextLines([ANY]), "path"),
        (lambda: TextLines(["/a", "s3://bucket/b"]), "path"),
        (lambda: Arrays(x="https://host/a.npy"), "x"),
    ],
)
def test_a_spec_that_cannot_be_names_its_field(make: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["customer lifetime value", "customer_lifetime_value_x", "a.b", "index"])
def test_a_name_that_no_column_can_have_is_one_in_the_files(name: str) -> None:
    with pytest.raises(SpecError, match=f"identifier .*Choose a short one, and say .*: names=.\"short\": '{name}'"):
        Parquet("/a", columns={name: Scalar()})
    with pytest.raises(SpecError, match=r"^columns\.x = 5: must be one of the kinds [^.]*, such as kinds\.Image\(\)$"):
        Csv("/a", {"x": ANY})


@pytest.mark.parametrize("dtype", [torch.int16, np.int16, np.dtype("int16"), "int16"])
def test_a_dtype_may_be_one_of_torch_or_numpy(dtype: Any) -> None:
    spec = Csv("/a", {"x": Scalar(dtype, missing=-1), "v": kinds.Array((2,), dtype)})
    assert spec == Csv("/a", {"x": Scalar("int16", missing=-1), "v": kinds.Array((2,), "int16")})
    assert source_from_wire(spec.to_wire()) == spec
    for wrong in (torch.complex64, float, 5, None):
        with pytest.raises(SpecError, match=r"columns\.x\.dtype = .*: must be 'bool' or"):
            Csv("/a", {"x": Scalar(wrong)})  # type: ignore[arg-type]
    assert Parquet("/a", columns={"m": kinds.Mask(dtype=np.uint16)}).columns["m"] == kinds.Mask(dtype="uint16")  # type: ignore[arg-type]


def test_several_columns_of_the_files_make_an_array() -> None:
    columns = {"v": kinds.Array((2,)), "x": Scalar()}
    for kind in (Csv, Jsonl, Parquet):
        spec: Any = kind("/a", columns=columns, names={"v": ("I1", "I2")})
        assert spec.names == {"v": ["I1", "I2"]}
        assert source_from_wire(spec.to_wire()) == spec
        assert [spec.names_of(column) for column in ("v", "x")] == [["I1", "I2"], ["x"]]
    Csv("/a", columns, {"v": ["I1", "I2"]}, header=["I1", "x", "I2"])
    for wrong, said in (
        ({"v": ["I1"]}, r"names = \['I1'\]: are 1 columns of the files: 'v' must be a kinds.Array\(\(1,\)\)"),
        ({"x": ["I1", "I2"]}, r"are 2 columns of the files: 'x' must be a kinds\.Array\(\(2,\)\)"),
        ({"v": ["I1", 5]}, "must be a name of 1 to 256 characters"),
    ):
        with pytest.raises(SpecError, match=said):
            Csv("/a", columns, wrong)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="has no 'I2'"):
        Csv("/a", columns, {"v": ["I1", "I2"]}, header=["I1", "x"])
    with pytest.raises(SpecError, match="must be one name: Csv, Jsonl and Parquet join"):
        TFRecord("/a", columns, {"v": ["I1", "I2"]})  # type: ignore[dict-item]


def test_declared_columns_need_no_file_that_is_here(tmp_path: Path) -> None:
    """Only the daemon may have it; one that is here is looked into."""
    given = tmp_path / "a.npz"
    columns = {"x": kinds.Array((2,), "float32"), "y": kinds.Scalar("int64")}
    assert Arrays(given, columns=columns).files == {"x": str(given), "y": str(given)}
    np.savez(given, x=np.zeros((3, 2), np.float32))
    with pytest.raises(SpecError, match="is no column; there are: x"):
        Arrays(given, columns=columns)


def test_what_came_over_the_wire_is_checked(tmp_path: Path) -> None:
    wire = Csv(tmp_path / "a.csv", {"x": Text()}).to_wire()
    for change, field in (({"path": ["a.csv"]}, "path"), ({"root": "a"}, "root"), ({"delimiter": None}, "delimiter")):
        with pytest.raises(SpecError, match=field):
            source_from_wire(wire | change)
    with pytest.raises(SpecError, match=r"source\.delimiter"):
        source_from_wire({name: value for name, value in wire.items() if name != "delimiter"})


def test_specs_are_the_same_however_they_are_written() -> None:
    usual = Parquet("/a.parquet")
    assert usual == Parquet(["/a.parquet"], image="image.bytes", label="label")
    assert usual == Parquet("/a.parquet", columns={"image": Image(), "label": Label()}, names={"image": "image.bytes"})
    assert list(Parquet("/a.parquet", columns={"x": Scalar()}).columns) == ["x"]
    assert list(Parquet("/a.parquet", label="y", columns={"x": Scalar()}).columns) == ["label", "x"]
    assert source_from_wire(usual.to_wire()) == usual
    for wrong in ({"image": "i", "columns": {"image": Image()}}, {"image": 5}, {"label": "x", "columns": [1]}):
        with pytest.raises(SpecError):
            Parquet("/a.parquet", **wrong)
    with pytest.raises(SpecError, match=r"pass a map of names to kinds as columns="):
        Parquet("/a.parquet", {"x": Scalar()})  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["hf://datasets/x", "file:///data/a.csv", "gcs://bucket/a.csv"])
def test_a_scheme_that_is_not_read_is_named(url: str) -> None:
    """It would become a relative path."""
    with pytest.raises(SpecError, match=f"has the scheme '{url.partition(':')[0]}': the daemon reads paths and s3://"):
        TextLines(url)
