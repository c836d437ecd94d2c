"""Directories as Hugging Face's datasets writes them: the same samples, and what is said of those that it cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import HuggingFace, source_from_wire
from prepserver.source import SampleError, Source, SourceError, build_index, open_source
from prepserver.source.readers.hugging_face import HuggingFaceReader
from prepserver.source.roots import ANYWHERE, OutsideRootsError, Roots
from prepserver.source.storage import open_file

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(folder: Path, tables: list[pa.Table], **state: Any) -> HuggingFace:
    """What ``Dataset.save_to_disk`` writes, in batches of 3 rows."""
    folder.mkdir()
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=3)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]} | state))
    features = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}, "image": {"_type": "Image"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return HuggingFace(folder)


def table(count: int, first: int = 0, **columns: pa.Array) -> pa.Table:
    images = [{"bytes": b"image %d" % number, "path": None} for number in range(first, first + count)]
    labels = [number % 2 for number in range(first, first + count)]
    return pa.table({"image": pa.array(images, IMAGE), "label": pa.array(labels, pa.int64())} | columns)


def opened(spec: HuggingFace, tmp_path: Path) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


def test_samples_are_those_of_the_arrow_files(tmp_path: Path) -> None:
    source = opened(write(tmp_path / "data", [table(8), table(5, first=8)]), tmp_path)
    assert len(source) == 13
    assert [source.read(k) for k in range(13)] == [{"image": b"image %d" % k, "label": k % 2} for k in range(13)]
    assert source.classes() == ["cat", "dog"]
    assert source.name(9) == "data-00001-of-00002.arrow/1"


def test_plain_bytes_other_names_masks_and_no_labels_are_read(tmp_path: Path) -> None:
    """A slice, whose arrays begin in the middle of their buffers, too."""
    rows = pa.table(
        {"png": pa.array([b"a", b"bb", b"", b"dd"], pa.large_binary()), "seg": pa.array([b"1", b"2", b"3", b"4"])}
    )
    spec = write(tmp_path / "data", [rows.slice(1)])
    source = opened(HuggingFace(spec.path, image="png", label=None, mask="seg"), tmp_path)
    assert [source.read(k) for k in (0, 2)] == [{"image": b"bb", "mask": b"2"}, {"image": b"dd", "mask": b"4"}]
    with pytest.raises(SampleError, match="its image is empty"):
        source.read(1)


COLUMNS: dict[str, kinds.Kind] = {
    "text": kinds.Text(), "tokens": kinds.Tokens(), "pair": kinds.Array((2,), "float64"), "score": kinds.Scalar(),
    "age": kinds.Label(), "sound": kinds.Bytes(),
}  # fmt: skip


def test_texts_lists_and_numbers_are_read_in_place(tmp_path: Path) -> None:
    """From batches of 3 rows, and a slice, whose arrays begin in the middle of their buffers."""
    count = 8
    rows = {
        "text": pa.array([f"t\u00fcr {n}" * n for n in range(count)]),
        "input_ids": pa.array([list(range(n)) for n in range(count)], pa.list_(pa.int32())),
        "pair": pa.array([[n, -n] for n in range(count)], pa.list_(pa.float64(), 2)),
        "score": pa.array([n / 2 for n in range(count)], pa.float16()),
        "age": pa.array(range(count), pa.uint8()),
        "sound": pa.array([{"bytes": b"%d" % n, "path": None} for n in range(count)], IMAGE),
        "unused": pa.array([[["x"]]] * count),
    }
    spec = write(tmp_path / "data", [pa.table(rows), pa.table(rows).slice(2)])
    source = opened(HuggingFace(spec.path, columns=COLUMNS, names={"tokens": "input_ids"}), tmp_path)
    for index, n in enumerate([*range(count), *range(2, count)]):
        found = source.read(index)
        assert (found["tokens"].dtype, found["tokens"].tolist()) == (np.int64, list(range(n)))
        assert found["pair"].tolist() == [n, -n]
        assert {name: found[name] for name in ("text", "score", "age", "sound")} == {
            "text": f"t\u00fcr {n}" * n, "score": n / 2, "age": n, "sound": b"%d" % n,
        }  # fmt: skip
        assert source.label(index) == n
    assert source.classes() == []


def test_a_null_is_bad_alone_and_other_columns_are_named(tmp_path: Path) -> None:
    rows = pa.table({
        "text": pa.array(["a", None, "c"]), "ids": pa.array([[1], [2], None], pa.list_(pa.int64())),
        "holes": pa.array([[1, None], None, [3]]), "deep": pa.array([[[1]]] * 3), "flags": pa.array([True] * 3),
    })  # fmt: skip
    path = write(tmp_path / "data", [rows]).path
    text: dict[str, kinds.Kind] = {"text": kinds.Text()}
    source = opened(HuggingFace(path, columns={"holes": kinds.Tokens()}), tmp_path)
    assert source.read(2)["holes"].tolist() == [3]
    for index in range(2):
        with pytest.raises(SampleError, match="its holes is null"):
            source.read(index)
    source = opened(HuggingFace(path, columns=text | {"ids": kinds.Tokens()}), tmp_path)
    assert source.read(0)["ids"].tolist() == [1]
    for index, column in ((1, "text"), (2, "ids")):
        with pytest.raises(SampleError, match=f"its {column} is null, or holds a null"):
            source.read(index)
    for column, kind, said in (
        ("deep", kinds.Array(), r"lists of numbers\. Dataset\.to_parquet\(\) writes"),
        ("ids", kinds.Scalar(), "numbers"), ("flags", kinds.Scalar("bool"), "numbers"), ("ids", kinds.Text(), "texts"),
        ("text", kinds.Tokens(), "lists of numbers"), ("text", kinds.Bytes(), "encoded images or bytes"),
    ):  # fmt: skip
        with pytest.raises(SourceError, match=f"column '{column}' is .*; it must hold {said}"):
            build_index(HuggingFace(path, columns={column: kind}), tmp_path / "cache")


def test_columns_of_nothing_are_read(tmp_path: Path) -> None:
    """Arrow has no place for them in the file."""
    rows = pa.table({
        "text": pa.array(["", None, ""]), "ids": pa.array([[], [], None], pa.list_(pa.int32())),
        "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
    })  # fmt: skip
    columns = {"text": kinds.Text(), "ids": kinds.Tokens(), "pair": kinds.Array((2,), "int64")}
    source = opened(HuggingFace(write(tmp_path / "data", [rows]).path, columns=columns), tmp_path)
    assert [source.read(0)["text"], *(source.read(0)[name].tolist() for name in ("ids", "pair"))] == ["", [], [1, 2]]
    with pytest.raises(SampleError, match="its text is null"):
        source.read(1)


def test_files_whose_numbers_differ_in_type_are_refused(tmp_path: Path) -> None:
    tables = [pa.table({"x": pa.array([1], dtype)}) for dtype in (pa.int8(), pa.int64())]
    path = write(tmp_path / "data", tables).path
    with pytest.raises(SourceError, match="column 'x' is int64 and int8: write it anew"):
        build_index(HuggingFace(path, columns={"x": kinds.Scalar("int64")}), tmp_path / "cache")


def test_files_may_have_batches_without_rows(tmp_path: Path) -> None:
    spec = write(tmp_path / "data", [table(2), table(2, first=2)])
    with pa.OSFile(str(tmp_path / "data/data-00001-of-00002.arrow"), "wb") as file:
        (batch,) = table(2, first=2).to_batches()
        with pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch[:0])
            stream.write_batch(batch)
    source = opened(spec, tmp_path)
    assert [source.read(k)["image"] for k in range(len(source))] == [b"image %d" % k for k in range(4)]


def test_a_file_whose_offsets_are_damaged_is_refused(tmp_path: Path) -> None:
    """They would lead into other samples' bytes."""
    spec = write(tmp_path / "data", [pa.table({"image": pa.array([b"aaaa", b"bbbb"]), "label": pa.array([0, 1])})])
    data = _first(tmp_path / "data").read_bytes()
    offsets = np.array([0, 4, 8], np.int32).tobytes()
    assert data.count(offsets) == 1
    _first(tmp_path / "data").write_bytes(data.replace(offsets, np.array([0, 9, 8], np.int32).tobytes()))
    with pytest.raises(SourceError, match=r"is damaged, or not an Arrow stream: .*offset"):
        build_index(spec, tmp_path / "cache")


def test_progress_counts_samples(tmp_path: Path) -> None:
    spec = write(tmp_path / "data", [table(8)])
    counts: list[int] = []
    path = _first(tmp_path / "data")
    with open_file(ANYWHERE, "the file", str(path)) as file:
        HuggingFaceReader(spec, ANYWHERE).list_file(str(path), file, counts.append)
    assert counts == [3, 3, 2]


def test_a_sample_without_its_image_is_bad_alone(tmp_path: Path) -> None:
    images = pa.array([None, {"bytes": None, "path": "/x.jpg"}, {"bytes": b"x", "path": None}], IMAGE)
    source = opened(write(tmp_path / "data", [table(3, image=images)]), tmp_path)
    for index in range(2):
        with pytest.raises(SampleError, match="its image is null"):
            source.read(index)
    assert source.read(2) == {"image": b"x", "label": 0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: (d / "state.json").unlink(), r"is no folder that save_to_disk\(\) wrote: it has no state\.json"),
        (lambda d: (d / "state.json").write_text("{"), "state.json is not JSON"),
        (lambda d: (d / "state.json").write_text('{"_data_files": [{"filename": "../x"}]}'), "names no files"),
        (lambda d: (d / "state.json").write_text('{"_data_files": 3}'), "names no files"),
        (lambda d: _state(d).rename(d / "dataset_dict.json").write_text('{"splits": ["a", "b"]}'), "one: .*/a, .*/b"),
        (lambda d: _state(d).rename(d / "dataset_dict.json").write_text('{"splits": 3}'), "it has no state.json"),
        (lambda d: _first(d).write_bytes(b""), "is empty: write the dataset again"),
        (lambda d: _first(d).write_bytes(b"no arrow at all" * 10), "is damaged, or not an Arrow stream"),
        (lambda d: _first(d).write_bytes(_first(d).read_bytes()[:700]), "is damaged, or not an Arrow stream"),
        (lambda d: _first(d).unlink(), r"the file .*arrow does not exist"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_used_is_named(change: Any, said: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "data", [table(5)])
    change(tmp_path / "data")
    with pytest.raises(SourceError, match=said):
        build_index(spec, tmp_path / "cache")


def _state(folder: Path) -> Path:
    return folder / "state.json"


def _first(folder: Path) -> Path:
    return folder / "data-00000-of-00001.arrow"


@pytest.mark.parametrize(
    ("columns", "arguments", "said"),
    [
        ({}, {"image": "photo"}, "has no column 'photo'; it has: image, label"),
        ({}, {"image": "label"}, "column 'label' is int64; it must hold encoded images"),
        ({"label": pa.array(["a", "b"])}, {}, "column 'label' is string; labels must be integers"),
        ({"label": pa.array([1, None])}, {}, "is int64 with 1 nulls; labels must be integers from 0, without nulls"),
        ({"label": pa.array([1, -1])}, {}, "integers from 0"),
    ],
)
def test_a_column_that_does_not_fit_is_named(
    columns: dict[str, pa.Array], arguments: dict[str, Any], said: str, tmp_path: Path
) -> None:
    spec = write(tmp_path / "data", [table(2, **columns)])
    with pytest.raises(SourceError, match=said):
        build_index(HuggingFace(spec.path, **arguments), tmp_path / "cache")


def test_compressed_files_and_selections_say_the_way_out(tmp_path: Path) -> None:
    spec = write(tmp_path / "data", [table(5)])
    with pa.OSFile(str(_first(tmp_path / "data")), "wb") as file:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(file, table(900).schema, options=options) as stream:
            stream.write_table(table(900))
    with pytest.raises(SourceError, match="is compressed, so no sample can be read alone"):
        build_index(spec, tmp_path / "cache")
    with pytest.raises(SourceError, match=r"call flatten_indices\(\) before"):
        build_index(write(tmp_path / "some", [table(5)], _indices_files=[{"filename": "i"}]), tmp_path / "cache")


def test_other_names_of_classes_are_another_listing(tmp_path: Path) -> None:
    spec = write(tmp_path / "data", [table(2)])
    os.utime(_first(tmp_path / "data"), (1e9, 1e9))
    before = build_index(spec, tmp_path / "cache")
    assert build_index(spec, tmp_path / "cache").path == before.path
    info = tmp_path / "data" / "dataset_info.json"
    info.write_text(info.read_text().replace("cat", "cow"))
    after = build_index(spec, tmp_path / "cache")
    assert (before.classes, after.classes) == (("cat", "dog"), ("cow", "dog"))
    assert after.digest != before.digest
    info.write_text(info.read_text().replace("cow", "cat"))
    assert build_index(spec, tmp_path / "cache").path == before.path


def test_a_dataset_that_became_several_splits_names_them(tmp_path: Path) -> None:
    spec = write(tmp_path / "data", [table(2)])
    os.utime(_first(tmp_path / "data"), (1e9, 1e9))
    build_index(spec, tmp_path / "cache")
    (tmp_path / "data").rename(tmp_path / "train")
    (tmp_path / "data").mkdir()
    (tmp_path / "train").rename(tmp_path / "data" / "train")
    (tmp_path / "data" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(SourceError, match=r"holds several splits; name one: .*/data/train$"):
        build_index(spec, tmp_path / "cache")


def test_files_outside_the_roots_are_refused(tmp_path: Path) -> None:
    spec = write(tmp_path / "data", [table(2)])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "data")
    roots = Roots([str(tmp_path / "in")])
    for path in (spec.path, str(tmp_path / "in" / "link")):
        with pytest.raises(OutsideRootsError):
            build_index(HuggingFace(path), tmp_path / "cache", roots=roots)


def test_it_is_what_datasets_writes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    rows = {"image": [{"bytes": b"%d" % k, "path": None} for k in range(20)], "label": [k % 2 for k in range(20)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "data", num_shards=3)
    source = opened(HuggingFace(tmp_path / "data"), tmp_path)
    assert [source.read(k) for k in range(20)] == [{"image": b"%d" % k, "label": k % 2} for k in range(20)]
    assert source.classes() == ["a", "b"]
    rows = {"text": ["a", "", "ccc"], "input_ids": [[1], [], [2, 3]]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "texts")
    columns = {"text": kinds.Text(), "input_ids": kinds.Tokens()}
    source = opened(HuggingFace(tmp_path / "texts", columns=columns), tmp_path)
    assert [(found["text"], found["input_ids"].tolist()) for found in map(source.read, range(3))] == list(
        zip(*rows.values(), strict=True)
    )


def test_the_spec_travels_and_checks_its_names() -> None:
    for spec in (HuggingFace("/data/x", mask="seg"), HuggingFace("/data/x", label=None)):
        assert source_from_wire(spec.to_wire()) == spec
    assert list(HuggingFace("/x", mask="seg").columns) == ["image", "mask", "label"]
    with pytest.raises(SpecError, match="must be the name of a column"):
        HuggingFace("/x", image="")


@pytest.mark.parametrize("state", ["[" * 30_000, '{"_data_files": [{"filename": "\\ud800"}]}'])
def test_a_state_that_is_hostile_is_an_error_in_words(state: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "data", [table(2)])
    (tmp_path / "data" / "state.json").write_text(state)
    with pytest.raises(SourceError, match=r"state\.json (is not JSON|names no files)"):
        build_index(spec, tmp_path / "cache")
