"""The same few samples in each format that lies in files: written to a folder, named by where that folder is."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image as Picture

from prepserver.pack.report import Report
from prepserver.pack.run import Options, pack
from prepserver.pack.transcode import Transcoder
from prepserver.pipeline import kinds
from prepserver.pipeline.sources import (
    Arrays,
    Coco,
    Csv,
    FileList,
    HuggingFace,
    ImageFolder,
    Jsonl,
    Packed,
    Parquet,
    SourceSpec,
    Subset,
    Tar,
    TextLines,
    TFRecord,
    Voc,
)
from prepserver.protocol.packed import IndexedScan
from prepserver.source import Source
from prepserver.source.readers.packed import INDEX_PATTERN
from tests.support.detection import HEIGHT, WIDTH, coco_tree, voc_tree
from tests.support.tf_records import file_of
from tests.support.tiny_images import jpeg, photo_tree

COUNT = 12

Format = Callable[[Path], Callable[[str], SourceSpec]]
"""Writes `COUNT` samples or more below a folder; returns what names them, by the path or URL of the folder. On a web
server, which lists nothing, they are named without wildcards."""


def _matched(base: str, wild: str, braces: str) -> str:
    return f"{base}/{braces if base.startswith('http') else wild}"


def check_same_samples(there: Source, here: Source) -> None:
    """Reads all samples of both, together and column by column."""
    assert len(there) == len(here)
    there.prefetch(range(len(there)))
    for index in range(len(here)):
        found, wanted = there.read(index), here.read(index)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            alone = [each.read_columns(index, [name])[name] for each in (there, here)]
            for one in (found[name], *alone):
                one, other = (each.jpeg if isinstance(each, IndexedScan) else each for each in (one, value))
                np.testing.assert_equal(one, other)


def masked_tree(folder: Path) -> Callable[[str], SourceSpec]:
    photo_tree(folder / "tree", COUNT)
    for image in (folder / "tree").rglob("*.jpg"):
        mask = folder / "masks" / image.parent.name / f"{image.stem}.png"
        mask.parent.mkdir(parents=True, exist_ok=True)
        mask.write_bytes(b"mask of " + image.name.encode())
    (folder / "tree" / "cats" / "notes.txt").write_text("no image")
    (folder / "tree" / "cats" / "deep").mkdir()
    (folder / "tree" / "cats" / "deep" / "a b%20c.JPG").write_bytes(jpeg(99))
    (folder / "masks" / "cats" / "deep").mkdir()
    (folder / "masks" / "cats" / "deep" / "a b%20c.png").write_bytes(b"a mask")
    return lambda base: ImageFolder(f"{base}/tree", masks=f"{base}/masks")


def list_beside_images(folder: Path) -> Callable[[str], SourceSpec]:
    photo_tree(folder / "tree", COUNT)
    lines = [f"tree/{path.parent.name}/{path.name}\t{number}\n" for number, path in enumerate((folder).rglob("*.jpg"))]
    (folder / "list.txt").write_text("".join(lines))
    return lambda base: FileList(f"{base}/list.txt")


def tars(folder: Path) -> Callable[[str], SourceSpec]:
    for shard in "01":
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(COUNT):
                texts = (".txt", b"word " * number), (".json", b'{"score": %d.5}' % number)
                for ending, data in ((".jpg", jpeg(number)), (".cls", b"%d" % number), *texts):
                    member = tarfile.TarInfo(f"{shard}{number}{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    columns = {
        "image": kinds.Image(), "label": kinds.Label(), "caption": kinds.Text(), "score": kinds.Scalar(),
    }  # fmt: skip
    names = {"caption": "txt", "score": "json:score"}
    return lambda base: Tar(_matched(base, "[01].tar", "{0..1}.tar"), columns=columns, names=names)


def arrow(folder: Path) -> Callable[[str], SourceSpec]:
    texts = {"text": ["word " * n for n in range(COUNT)], "ids": pa.array([[n] * n for n in range(COUNT)])}
    table = pa.table({"image": [jpeg(n) for n in range(COUNT)], "label": list(range(COUNT))} | texts)
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=5)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"label": {"names": ["a"] * COUNT}}}))
    columns = {"image": kinds.Image(), "label": kinds.Label(), "text": kinds.Text(), "ids": kinds.Tokens()}
    return lambda base: HuggingFace(base, columns=columns)


def packed(folder: Path) -> Callable[[str], SourceSpec]:
    photo_tree(folder.parent / "to_pack", COUNT)
    pack(ImageFolder(folder.parent / "to_pack"), folder / "p", Options(Transcoder(False), shard_bytes=4000), Report())
    (index,) = (folder / "p").glob(INDEX_PATTERN)
    return lambda base: Packed(_matched(base, "p", f"p/{index.name}"))


def parquet(folder: Path) -> Callable[[str], SourceSpec]:
    for part in range(2):
        rows = range(part * COUNT, (part + 1) * COUNT)
        images = [{"bytes": jpeg(n), "path": None} for n in rows]
        table = pa.table({"image": images, "label": list(rows), "unused": ["x" * 1000] * COUNT})
        pa.parquet.write_table(table, folder / f"part-{part}.parquet", row_group_size=5)
    return lambda base: Parquet(_matched(base, "part-*.parquet", "part-{0,1}.parquet"))


def embeddings(folder: Path) -> Callable[[str], SourceSpec]:
    values = pa.FixedSizeListArray.from_arrays(pa.array(range(2 * COUNT), pa.float32()), 2)
    pa.parquet.write_table(pa.table({"x": values}), folder / "x.parquet", row_group_size=5)
    return lambda base: Parquet(f"{base}/x.parquet", columns={"x": kinds.Array((2,))})


def _photos(folder: Path) -> list[str]:
    (folder / "photos").mkdir(parents=True)
    for number in range(COUNT):
        (folder / f"photos/{number}.jpg").write_bytes(jpeg(number))
    return [f"photos/{number}.jpg" for number in range(COUNT)]


def table(folder: Path) -> Callable[[str], SourceSpec]:
    rows = [f'{name},{n}.5,"a ""b""\nc {n}"\r\n' for n, name in enumerate(_photos(folder))]
    (folder / "all.csv").write_text("photo,x,text\r\n" + "".join(rows), newline="")
    columns = {"photo": kinds.Image(), "x": kinds.Scalar(), "text": kinds.Text()}
    return lambda base: Csv(_matched(base, "*.csv", "all.csv"), columns)


def objects(folder: Path) -> Callable[[str], SourceSpec]:
    for part in "01":
        lines = [json.dumps({"photo": name, "label": n}) for n, name in enumerate(_photos(folder / part))]
        (folder / part / "some.jsonl").write_text("\n\n".join(lines))
    columns = {"photo": kinds.Image(), "label": kinds.Label()}
    return lambda base: Jsonl(_matched(base, "[01]/some.jsonl", "{0,1}/some.jsonl"), columns)


def texts(folder: Path) -> Callable[[str], SourceSpec]:
    for part in "ab":
        (folder / f"{part}.txt").write_text("".join(f"line {n} of {part}\n\n" for n in range(COUNT)))
    return lambda base: TextLines([f"{base}/{{a,b}}.txt"])


def records(folder: Path) -> Callable[[str], SourceSpec]:
    found = [{"image": [jpeg(n)], "label": [n]} for n in range(COUNT)]
    (folder / "t.tfrecord").write_bytes(file_of(found))  # type: ignore[arg-type]
    return lambda base: TFRecord(_matched(base, "*.tfrecord", "t.tfrecord"))


def safetensors_file(arrays: dict[str, np.ndarray[Any, Any]]) -> bytes:
    """A file of that format: the header's length, the header, the arrays one after the other."""
    header, end = {}, 0
    for name, array in arrays.items():
        dtype = {"f": "F", "i": "I"}[array.dtype.kind] + str(8 * array.itemsize)
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [end, end := end + array.nbytes]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values())


def _arrays(suffix: str) -> Format:
    def made(folder: Path) -> Callable[[str], SourceSpec]:
        values = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3)
        arrays: dict[str, np.ndarray[Any, Any]] = {"x": values, "label": np.arange(COUNT) * 7 % COUNT}
        columns = {"x": kinds.Array((2, 3)), "label": kinds.Label()}
        if suffix == "npz":
            np.savez(folder / "all.npz", **arrays)  # type: ignore[arg-type]
        elif suffix == "safetensors":
            (folder / "all.safetensors").write_bytes(safetensors_file(arrays))
        else:
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array)
        if suffix == "npz":
            return lambda base: Arrays(f"{base}/all.npz", columns=columns)
        name = "{}.npy" if suffix == "npy" else f"all.{suffix}"
        return lambda base: Arrays(columns=columns, **{each: f"{base}/{name.format(each)}" for each in columns})

    made.__name__ = suffix
    return made


def coco(folder: Path) -> Callable[[str], SourceSpec]:
    spec = coco_tree(folder / "data", COUNT)
    root, annotations = (str(Path(each).relative_to(folder)) for each in (spec.root, spec.annotations))
    return lambda base: Coco(f"{base}/{root}", f"{base}/{annotations}")


def voc(folder: Path) -> Callable[[str], SourceSpec]:
    spec = voc_tree(folder / "data", COUNT)
    (folder / "data/ImageSets/Segmentation").mkdir()
    (folder / "data/SegmentationClass").mkdir()
    names = Path(spec.root, "ImageSets/Main/train.txt").read_text()
    Path(spec.root, "ImageSets/Segmentation/train.txt").write_text(names)
    for name in names.split():
        Picture.new("L", (WIDTH, HEIGHT)).save(folder / f"data/SegmentationClass/{name}.png")
    return lambda base: Voc(f"{base}/data", "train", masks=True)


def subset(folder: Path) -> Callable[[str], SourceSpec]:
    np.save(folder / "chosen.npy", np.arange(COUNT)[::-1])
    inner = texts(folder)
    return lambda base: Subset(inner(base), file=f"{base}/chosen.npy")


npy, npz, safetensors = map(_arrays, ("npy", "npz", "safetensors"))

FORMATS: list[Format] = [
    masked_tree, list_beside_images, tars, arrow, packed, parquet, embeddings, table, objects, texts, records,
    npy, npz, safetensors, coco, voc, subset,
]  # fmt: skip
