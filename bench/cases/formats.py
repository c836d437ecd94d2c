"""What do photos cost from each format, compared with a folder of the same files?

The same photos as single files (`ImageFolder`; by `FileList`, `Csv`, `Jsonl`, and `Coco` with its boxes), in shards
(`Tar`, `TFRecord`, `Parquet` in row groups of 100, `HuggingFace`) and packed. One daemon, one job, a random crop of 224
pixels and a flip, batches of 64, shuffled over all samples; the formats take turns in each round, each after a warm-up.
Everything is in the page cache: work is compared, not disks. TFRecord needs the package ``tfrecord`` to be written.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cases.records import rate
from bench.harness.case import Case, Figures, Run, say
from bench.harness.photos import write_boxes
from bench.harness.rounds import Target, disturbed, target_sheet, values
from bench.harness.server import run_cli, running_server
from bench.harness.tables import Sheet, spread
from prepclient import (
    Coco,
    Csv,
    FileList,
    HuggingFace,
    ImageFolder,
    Jsonl,
    Packed,
    PadBoxes,
    Parquet,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Tar,
    TFRecord,
)
from prepserver.pipeline import kinds
from prepserver.pipeline.source import SourceSpec

_SAMPLES = 2000
_COLUMNS = {"image": kinds.Image(), "label": kinds.Label()}

Listed = list[tuple[Path, int]]


def _folder(folder: Path, listed: Listed) -> SourceSpec:
    for number, (photo, label) in enumerate(listed):
        path = folder / f"{label:03}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(photo)
    return ImageFolder(folder)


def _list(folder: Path, listed: Listed) -> SourceSpec:
    (folder / "list.txt").write_text("".join(f"{photo}\t{label}\n" for photo, label in listed))
    return FileList(folder / "list.txt")


def _csv(folder: Path, listed: Listed) -> SourceSpec:
    (folder / "a.csv").write_text("image,label\n" + "".join(f"{photo},{label}\n" for photo, label in listed))
    return Csv(folder / "a.csv", _COLUMNS, root="/")


def _jsonl(folder: Path, listed: Listed) -> SourceSpec:
    lines = (json.dumps({"image": os.fspath(photo), "label": label}) for photo, label in listed)
    (folder / "a.jsonl").write_text("\n".join(lines))
    return Jsonl(folder / "a.jsonl", _COLUMNS, root="/")


def _tar(folder: Path, listed: Listed) -> SourceSpec:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, (photo, label) in enumerate(listed):
            archive.add(photo, f"{number:05}.jpg")
            (folder / "label").write_text(str(label))
            archive.add(folder / "label", f"{number:05}.cls")
    return Tar(folder / "a.tar", "jpg", "cls")


def _tf_record(folder: Path, listed: Listed) -> SourceSpec:
    import tfrecord

    writer = tfrecord.TFRecordWriter(str(folder / "a.tfrecord"))
    for photo, label in listed:
        writer.write({"image": (photo.read_bytes(), "byte"), "label": (label, "int")})
    writer.close()
    return TFRecord(folder / "a.tfrecord")


def _table(listed: Listed) -> Any:
    import pyarrow as pa

    images = [{"bytes": photo.read_bytes(), "path": None} for photo, _ in listed]
    return pa.table({"image": images, "label": [label for _, label in listed]})


def _parquet(folder: Path, listed: Listed) -> SourceSpec:
    import pyarrow.parquet

    pyarrow.parquet.write_table(_table(listed), folder / "a.parquet", row_group_size=100)
    return Parquet(folder / "a.parquet")


def _hugging_face(folder: Path, listed: Listed) -> SourceSpec:
    import pyarrow as pa

    table = _table(listed)
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=100)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")
    return HuggingFace(folder)


def _packed(folder: Path, listed: Listed) -> SourceSpec:
    run_cli("pack", str(_list(folder, listed).path), str(folder / "packed"))  # type: ignore[attr-defined]
    return Packed(folder / "packed")


_FORMATS: dict[str, Callable[[Path, Listed], SourceSpec]] = {
    "ImageFolder": _folder, "FileList": _list, "Csv": _csv, "Jsonl": _jsonl, "Tar": _tar, "TFRecord": _tf_record,
    "Parquet": _parquet, "HuggingFace": _hugging_face, "Packed": _packed,
}  # fmt: skip


def measure(run: Run) -> Figures:
    photos = run.photos
    count = 200 if run.smoke else _SAMPLES
    listed = [photos.files[number % len(photos.files)] for number in range(count)]
    sources: dict[str, SourceSpec] = {}
    left_out: dict[str, str] = {}
    for name, write in _FORMATS.items():
        say(f"writing {name}")
        folder = run.scratch / name
        folder.mkdir()
        try:
            sources[name] = write(folder, listed)
        except ImportError as error:
            left_out[name] = str(error)
    sources["Coco"] = Coco("/", write_boxes(photos, count, run.scratch / "boxes.json"))
    rounds: list[list[dict[str, Any]]] = []
    ops = [RandomResizedCrop(224), RandomHorizontalFlip()]
    with running_server(run.scratch, run.workers) as server:
        for _ in range(run.rounds(5)):
            cells = []
            for name, source in sources.items():
                with server.client(
                    source, ops + [PadBoxes(20)] * (name == "Coco"), fields=["image", "index"]
                ) as client:
                    found = rate(client, *((0.5, 0.5) if run.smoke else (2.0, 3.0)))
                cells.append({"format": name, **found})
                say(f"{name:12} {found['rows_per_s']:6.0f} images/s")
            rounds.append(cells)
    return {"workers": run.workers, "left_out": left_out, "rounds": rounds}


def sheets(result: Figures) -> list[Sheet]:
    rounds = result["rounds"]
    sheet = Sheet(f"Photos by format, {result['workers']} workers", ("format", "images/s", "CPU s per million"))
    names = [cell["format"] for cell in rounds[0]]
    for name in names:
        found = [values(rounds, figure, {"format": name}) for figure in ("rows_per_s", "cpu_s_per_million")]
        sheet.rows.append((name, *(spread(each, ".0f") for each in found)))
    first, *others = names
    targets = [Target(f"{name} / {first}", "rows_per_s", {"format": name}, {"format": first}, 0.95) for name in others]
    return [sheet, target_sheet("Ratios, median over rounds (min-max)", rounds, targets)]


def remarks(result: Figures) -> list[str]:
    left = [f"Left out: {name} ({why})." for name, why in result["left_out"].items()]
    return left + disturbed(result["rounds"])


CASE = Case("Photos by format", measure, sheets, remarks)
