"""Arrays in files: the same rows as numpy reads, and what is said of files that cannot be used."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prepclient import Arrays, PrepClient
from prepserver.pipeline import kinds
from prepserver.pipeline.arrayfile import BadArrayError, stored_arrays
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import ITEM_BYTES
from prepserver.pipeline.sources import source_from_wire
from prepserver.source import Roots, SampleError, Source, SourceError, build_index, open_source
from prepserver.source.readers import arrays
from prepserver.source.roots import OutsideRootsError
from prepserver.source.storage import File

N = 40


def rows(shape: tuple[int, ...], dtype: str, n: int = N) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (n, *shape)).astype(dtype)


def opened(spec: Arrays, tmp_path: Path, roots: Roots | None = None) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache", roots=roots).path, roots)


def block(source: Source, spec: Arrays, indices: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    stored = {name: kind.stored() for name, kind in spec.columns.items()}
    into = {name: np.zeros((len(indices), *shape), dtype) for name, (shape, dtype) in stored.items()}
    assert source.read_block(indices, into)
    return into


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_every_dtype_is_read_as_stored_in_every_format(dtype: str, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    # An odd length and a name of odd length, so that no array in the file is aligned.
    given = {"x": rows((3, 2), dtype), "odd": rows((3,), "uint8"), "z": rows((), dtype)}
    np.savez(tmp_path / "a.npz", **given)  # type: ignore[arg-type]
    safetensors.save_file(given, tmp_path / "a.safetensors")
    for name, array in given.items():
        np.save(tmp_path / f"{name}.npy", array)
    for spec in (
        Arrays(tmp_path / "a.npz"),
        Arrays(tmp_path / "a.safetensors"),
        Arrays(**{name: tmp_path / f"{name}.npy" for name in given}),  # type: ignore[arg-type]
    ):
        assert spec.columns == {
            "x": kinds.Array((3, 2), dtype), "odd": kinds.Array((3,), "uint8"), "z": kinds.Scalar(dtype)
        } | {name: spec.columns[name] for name in spec.columns}  # fmt: skip
        source = opened(spec, tmp_path)
        assert len(source) == N
        order = [5, 0, N - 1, 5, 6, 7]
        found = block(source, spec, order)
        for name, array in given.items():
            assert found[name].dtype == array.dtype
            assert (found[name] == array[order]).all()
            assert (source.read(7)[name] == array[7]).all()


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_rows_reach_tensors_of_their_dtype(shape: tuple[int, ...], tmp_path: Path) -> None:
    given = {f"as_{dtype}": rows(shape, dtype) for dtype in ITEM_BYTES}
    np.savez(tmp_path / "a.npz", **given)  # type: ignore[arg-type]
    with PrepClient(Arrays(tmp_path / "a.npz"), [], batch_size=16, fields="dict", inline=True) as client:
        batches = list(client)
    for name, array in given.items():
        found = np.concatenate([batch[name].numpy() for batch in batches])
        assert found.dtype == array.dtype
        assert (found == array[np.concatenate([batch["index"].numpy() for batch in batches])]).all()


@pytest.mark.parametrize("dtype", ["int16", "uint64"])
def test_integers_with_the_name_label_are_labels(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows((4,), "float32"))
    np.save(tmp_path / "y.npy", np.arange(N, dtype=dtype) % np.array(7, dtype))
    spec = Arrays(x=tmp_path / "x.npy", label=tmp_path / "y.npy")
    declared = Arrays(x=tmp_path / "x.npy", y=tmp_path / "y.npy", columns={"y": kinds.Label()})
    assert spec.columns["label"] == declared.columns["y"] == kinds.Label()
    assert Arrays(x=tmp_path / "x.npy", y=tmp_path / "y.npy").columns["y"] == kinds.Scalar(dtype)
    info = build_index(spec, tmp_path / "cache")
    assert (info.samples, info.num_classes) == (N, 7)
    source = opened(declared, tmp_path)
    assert block(source, declared, [8, 20])["y"].tolist() == [1, 6]
    assert (source.label(9), source.name(9)) == (2, "x.npy[9]")
    assert source.read(9)["y"].dtype == np.int64


def test_a_file_that_is_cut_while_it_is_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", rows((4,), "float32"))
    np.save(tmp_path / "label.npy", np.zeros(N, np.int64))
    top_label = arrays._Column.top_label

    def cut_first(column: arrays._Column, file: File) -> int:
        os.truncate(tmp_path / "label.npy", 200)
        return top_label(column, file)

    monkeypatch.setattr(arrays._Column, "top_label", cut_first)
    with pytest.raises(SourceError, match=r"label\.npy was cut while it was listed"):
        build_index(Arrays(x=tmp_path / "x.npy", label=tmp_path / "label.npy"), tmp_path / "cache")


def test_pixels_may_be_declared_an_image(tmp_path: Path) -> None:
    pixels = rows((6, 5, 3), "uint8")
    np.save(tmp_path / "x.npy", pixels)
    spec = Arrays(image=tmp_path / "x.npy", columns={"image": kinds.Image((6, 5))})
    with PrepClient(spec, [], batch_size=N, fields=("image",), inline=True) as client:
        (batch,) = next(iter(client))
    assert (batch.permute(0, 2, 3, 1).numpy() == pixels).all()
    assert opened(spec, tmp_path).read(0)["image"].flags.writeable  # of others torch warns


def test_a_spec_that_declares_all_travels_and_opens_nothing(tmp_path: Path) -> None:
    spec = Arrays(x="/nowhere/x.npy", columns={"x": kinds.Array((2,), "int8")})
    assert source_from_wire(spec.to_wire()) == spec
    assert spec.location == "/nowhere/x.npy"
    assert Arrays("/nowhere/x.npy", columns=spec.columns) == spec
    with pytest.raises(SourceError, match=r"the file /nowhere/x.npy does not exist"):
        build_index(spec, tmp_path / "cache")
    with pytest.raises(SpecError, match="absolute path"):
        source_from_wire(spec.to_wire() | {"files": {"x": "x.npy"}})
    for files in (3, {}, {"y": "/y.npy"}):
        with pytest.raises(SpecError, match="must name a file for each of the columns"):
            source_from_wire(spec.to_wire() | {"files": files})


def test_arguments_that_cannot_be_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, rows((2,), "int8"))
    np.savez(tmp_path / "x.npz", a=rows((2,), "int8"))
    for make, said in (
        (lambda: Arrays(), "must be 1 to 256 different columns"),
        (lambda: Arrays(path), r"write Arrays\(x=PATH\)"),
        (lambda: Arrays(path, y=path), "a file for each column"),
        (lambda: Arrays(x=path, columns={"y": kinds.Label()}), "is no column; there are: x"),
        (lambda: Arrays(x=path, columns={"x": kinds.Array()}), "must say the shape"),
        (lambda: Arrays(b=tmp_path / "x.npz"), "is no array of the file; it has: a"),
        (lambda: Arrays(x=tmp_path / "gone.npy"), "cannot be read here .* declare the kinds"),
        (lambda: Arrays(index=path), "identifier"),
    ):
        with pytest.raises(SpecError, match=said):
            make()  # type: ignore[no-untyped-call]


def saved(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", data)
    return file.getvalue()


X = rows((2,), "float32", 3)
NPY = saved(np.save, X)
NPZ = saved(np.savez, x=X)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.npy", saved(np.save, np.array([{}, 3], object)), "holds Python objects"),
        ("x.npy", saved(np.save, np.zeros(3, [("a", "f4")])), "holds Python objects or records"),
        ("x.npy", saved(np.save, np.asfortranarray(X)), "Fortran order.*ascontiguousarray"),
        ("x.npy", saved(np.save, X.astype(">f4")), "is big-endian; save array.astype"),
        ("x.npy", saved(np.save, X.astype("complex64")), "has the dtype <c8; save it as one of bool"),
        ("x.npy", saved(np.save, np.float32(3)), r"has the shape \(\); the first dimension"),
        ("x.npy", NPY[:-1], "is cut off: its 24 bytes from byte 128 do not fit into 151"),
        ("x.npy", NPY[:60], "its header is no header"),
        ("x.npy", b"", "does not begin as one"),
        ("x.npy", NPY.replace(b"(3, 2)", b"(3,-2)"), "has the shape"),
        ("x.npz", saved(np.savez_compressed, x=X), "is compressed .*numpy.savez"),
        ("x.npz", saved(np.savez, x=np.asfortranarray(X)), "array 'x', which is in Fortran order"),
        ("x.npz", NPZ[:-40], "no .npz file"),
        ("x.npz", zipped(NPY.replace(b"(3, 2)", b"(9, 2)")), "array 'x' does not fit into its 152 bytes"),
        ("x.safetensors", b"\xff" * 9, "its header has"),
        ("x.safetensors", (2).to_bytes(8, "little") + b"[]", "its header is not one"),
        ("x.txt", b"", "does not end in .npy, .npz, .safetensors"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_says_the_way_out(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SpecError, match=said):  # in the client
        Arrays(x=tmp_path / name)
    spec = Arrays(x=tmp_path / name, columns={"x": kinds.Array((2,))})
    with pytest.raises(SourceError, match=said):  # on the daemon's side
        build_index(spec, tmp_path / "cache")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 20]}, "another size than its shape says"),
        ({"dtype": "F32", "shape": [3, 2], "data_offsets": [-24, 0]}, "its header is not one"),
        ({"dtype": "F32", "shape": 6, "data_offsets": [0, 24]}, "its header is not one"),
        ({"dtype": "BF16", "shape": [3, 2], "data_offsets": [0, 12]}, "has the dtype BF16"),
        ({"dtype": "F32", "shape": [3, 2], "data_offsets": [8, 32]}, "is cut off"),
        ({"dtype": "F32"}, "its header is not one"),
        ({"dtype": "F32", "shape": [3, 2], "data_offsets": []}, "its header is not one"),
    ],
)
def test_a_header_of_safetensors_that_lies_is_refused(entry: Any, said: str) -> None:
    header = json.dumps({"x": entry}).encode()
    file = io.BytesIO(len(header).to_bytes(8, "little") + header + bytes(24))
    with pytest.raises(BadArrayError, match=said):
        stored_arrays("x.safetensors", file)


@settings(max_examples=150)
@given(st.sampled_from([("a.npy", NPY), ("a.npz", NPZ)]), st.integers(0, 400), st.binary(min_size=1, max_size=6))
@example(("a.npy", NPY), 60, b"9" * 6)
def test_a_damaged_header_is_an_error_or_within_the_file(case: tuple[str, bytes], at: int, junk: bytes) -> None:
    name, data = case
    data = data[:at] + junk + data[at + len(junk) :]
    try:
        found = stored_arrays(name, io.BytesIO(data))
    except BadArrayError:
        return
    assert all(0 <= each.offset <= each.offset + each.nbytes <= len(data) for each in found.values())


def test_an_array_may_lie_beside_others_that_cannot_be_read(tmp_path: Path) -> None:
    x = rows((3,), "int8")
    np.savez(tmp_path / "a.npz", z=np.zeros(3, "complex64"), x=x, names=np.array(["a"] * N), step=np.int64(4))
    header = {"w": ("BF16", 2), "x": ("I8", 1)}
    entries = {name: {"dtype": d, "shape": [N, 3], "data_offsets": [i * 6 * N, i * 6 * N + 3 * N * size]}
               for i, (name, (d, size)) in enumerate(header.items())}  # fmt: skip
    text = json.dumps(entries).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(6 * N) + x.tobytes())
    for name in ("a.npz", "a.safetensors"):
        spec = Arrays(x=tmp_path / name)
        assert (block(opened(spec, tmp_path), spec, [4, 0])["x"] == x[[4, 0]]).all()
        with pytest.raises(SpecError, match=r"holds array '[zw]'"):
            Arrays(tmp_path / name)


def test_columns_that_do_not_fit_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows((2,), "int8"))
    np.save(tmp_path / "y.npy", rows((), "int8", N - 1))
    np.savez(tmp_path / "replay.npz", ends=np.array([4, 10]), a=rows((3,), "int8", 10))
    np.save(tmp_path / "none.npy", rows((2,), "int8", 0))
    np.save(tmp_path / "less.npy", np.array([3, -1]))
    np.save(tmp_path / "more.npy", np.array([3, 2**63], "uint64"))
    for spec, said in (
        (Arrays(x=tmp_path / "x.npy", y=tmp_path / "y.npy"), f"the same number of samples.*x {N}, y {N - 1}"),
        (
            Arrays(tmp_path / "replay.npz"),
            r"ends 2, a 10. Arrays\(a='.*/replay.npz', ...\) reads only those that it names",
        ),
        (Arrays(x=tmp_path / "none.npy"), r"none\.npy has no samples"),
        (Arrays(x=tmp_path / "x.npy", columns={"x": kinds.Array((2,))}), "dtype int8, and column 'x' is declared"),
        (Arrays(x=tmp_path / "x.npy", columns={"x": kinds.Array((3,), "int8")}), r"rows of shape \(2,\)"),
        (Arrays(label=tmp_path / "less.npy"), r"holds -1, .*from 0; declare it as kinds.Scalar\('int64'\)"),
        (Arrays(label=tmp_path / "more.npy"), r"holds 9223372036854775808, .*it as kinds.Scalar\('uint64'\)"),
    ):
        with pytest.raises(SourceError, match=said):
            build_index(spec, tmp_path / "cache")


def test_files_outside_the_roots_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "x.npy", rows((2,), "int8"))
    (tmp_path / "in" / "x.npy").symlink_to(tmp_path / "x.npy")
    roots = Roots([str(tmp_path / "in")])
    for path in (tmp_path / "x.npy", tmp_path / "in" / "x.npy"):
        with pytest.raises(OutsideRootsError):
            build_index(Arrays(x=path), tmp_path / "cache", roots=roots)


@pytest.mark.parametrize("change", ["cut", "touched"])
def test_a_file_that_changes_is_noticed_at_the_next_read(change: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows((2,), "int8"))
    spec = Arrays(x=tmp_path / "x.npy")
    source = opened(spec, tmp_path)
    block(source, spec, [0, 1])
    if change == "cut":
        os.truncate(tmp_path / "x.npy", 140)
    else:
        os.utime(tmp_path / "x.npy", (1e9, 1e9))
    for read in (lambda: block(source, spec, [0, 30]), lambda: source.read(30)):
        with pytest.raises(SampleError, match=r"x\.npy .*changed"):
            read()


def test_an_index_beyond_the_samples_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows((2,), "int8"))
    spec = Arrays(x=tmp_path / "x.npy")
    source = opened(spec, tmp_path)
    for bad in (N, -1):
        with pytest.raises(IndexError):
            source.read(bad)
        with pytest.raises(IndexError):
            block(source, spec, [0, bad])


def test_new_content_of_the_same_shape_is_another_listing(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows((2,), "int8"))
    first = build_index(Arrays(x=tmp_path / "x.npy"), tmp_path / "cache")
    np.save(tmp_path / "x.npy", rows((2,), "int8") + np.int8(1))
    assert build_index(Arrays(x=tmp_path / "x.npy"), tmp_path / "cache").digest != first.digest
    values = np.zeros(1 << 20, np.uint8)  # of which not all enter the digest of the content
    digests = []
    for change in range(2):
        values[5000] = change
        np.save(tmp_path / "large.npy", values)
        os.utime(tmp_path / "large.npy", (change, change))
        digests.append(build_index(Arrays(x=tmp_path / "large.npy"), tmp_path / "cache").digest)
    assert digests[0] != digests[1]
    (tmp_path / "moved").mkdir()
    np.save(tmp_path / "moved" / "x.npy", rows((2,), "int8"))
    moved = build_index(Arrays(x=tmp_path / "moved" / "x.npy"), tmp_path / "cache")
    assert moved.content_digest == first.content_digest


def test_a_file_without_a_header_is_rows_of_its_kind(tmp_path: Path) -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    (tmp_path / "train.bin").write_bytes(tokens.tobytes())
    columns = {"tokens": kinds.Array((33,), "uint16")}
    for spec in (
        Arrays(tmp_path / "train.bin", columns=columns), Arrays(tokens=tmp_path / "train.bin", columns=columns),
    ):  # fmt: skip
        source = opened(spec, tmp_path)
        assert len(source) == 1000 // 33
        assert source.read(7)["tokens"].tolist() == list(range(7 * 33, 8 * 33))
        assert block(source, spec, [29, 0])["tokens"].tolist() == [list(range(29 * 33, 990)), list(range(33))]
    with PrepClient(spec, [], batch_size=30, inline=True) as client:
        (batch,) = client
        assert batch[0].numpy().tobytes() == tokens[:990].tobytes()


def test_a_file_without_a_header_needs_its_kind_and_a_row(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(bytes(64))
    for arguments in ({"path": path}, {"tokens": path}):
        with pytest.raises(SpecError, match="has no header: say what its rows are"):
            Arrays(arguments.pop("path", None), **arguments)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"has 64 bytes, and a row of shape \(33,\) and dtype uint16 has 66"):
        opened(Arrays(path, columns={"tokens": kinds.Array((33,), "uint16")}), tmp_path)
