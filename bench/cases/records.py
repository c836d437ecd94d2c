"""How many rows of 1 kB per second do formats without decoding give, compared with the format's own fastest reader?

Shuffled, in batches of 256, with equal numbers of workers; a row is 256 floats and a label (Arrays: of a memory-mapped
.npy each; TFRecord: 240 floats, for the names of features take bytes, too; Parquet: row groups of 4096). The rival of
`Arrays` is a torch ``DataLoader`` over the same memory-mapped arrays; the same with ``__getitems__``, which takes a
whole batch by one index, is shown beside it, as is the same dataset through `Take`, `Skip` and `Concat`. The rival of
`TFRecord` is the package ``tfrecord`` with its index, in a ``DataLoader``; it shuffles 1024 neighbours. That of
`Parquet` is pyarrow in a ``DataLoader`` whose workers take row groups in random order and shuffle within each. Beside
it prepserver shuffles whole batches; and all rows, of a little more than the 256 MiB that a worker keeps decoded.
Contenders take turns in each round, each after a warm-up; three rounds of windows of 3 s.

``--tar-samples N`` asks instead how large the index of N samples in 100 tars is, and how fast a worker opens it. The
tars are one file with 100 names, a kilobyte for each image and for each label.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tarfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from bench.harness.case import Case, Figures, Run, say
from bench.harness.proc import cpu_s, machine_busy_s, tree
from bench.harness.rounds import Target, disturbed, target_sheet, values
from bench.harness.tables import Sheet, spread
from prepclient import Arrays, Concat, Parquet, PrepClient, Skip, Take, Tar, TFRecord
from prepserver.pipeline import kinds
from prepserver.pipeline.batches import Batching
from prepserver.pipeline.source import SourceSpec
from prepserver.source import build_index, open_source

_PID = os.getpid()
_BATCH = 256
_ROWS = 1 << 18
_FLOATS = {"Arrays": 256, "TFRecord": 240, "Parquet": 256}

Loader = Callable[[Path, int], AbstractContextManager[Iterable[Any]]]
"""Makes batches, from the folder of the data and the number of workers; it is iterated once for each epoch."""


@dataclass(frozen=True)
class Format:
    """A format of records.

    Attributes:
        write: Writes the rows that it is given into a folder.
        source: prepserver's source for them.
        rivals: Other readers of the same files, by name. The first one is its own fastest reader.
        least: How much faster than that one prepserver should be.
        order: Of prepserver's batches.
    """

    write: Callable[[Path, np.ndarray[Any, Any]], None]
    source: Callable[[Path], SourceSpec]
    rivals: dict[str, Loader]
    least: float
    order: Batching = "shuffle-batch-repeat"


class _Mapped(Dataset[Any]):
    """The reader that numpy's and torch's documents suggest."""

    def __init__(self, folder: Path) -> None:
        self.x, self.y = (np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.x[index], self.y[index]


class _MappedBatches(_Mapped):
    """The same, a batch at a time."""

    def __getitems__(self, indices: list[int]) -> tuple[Any, Any]:
        return torch.from_numpy(self.x[indices]), torch.from_numpy(self.y[indices])


def _loader(dataset: type[_Mapped], collate: Any = None) -> Loader:
    @contextlib.contextmanager
    def made(folder: Path, workers: int) -> Iterator[Iterable[Any]]:
        yield DataLoader(
            dataset(folder), _BATCH, shuffle=True, num_workers=workers, persistent_workers=True, collate_fn=collate
        )

    return made


@contextlib.contextmanager
def _tfrecord(folder: Path, workers: int) -> Iterator[Iterable[Any]]:
    from tfrecord.torch.dataset import TFRecordDataset

    taken = {"x": "float", "label": "int"}
    dataset = TFRecordDataset(str(folder / "a.tfrecord"), str(folder / "a.index"), taken, shuffle_queue_size=1024)
    yield DataLoader(dataset, _BATCH, num_workers=workers, persistent_workers=True)


class _RowGroups(IterableDataset[Any]):
    """Batches of a Parquet file, one row group after the other, in random order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(self.path)
        mine = get_worker_info()
        assert mine is not None
        for group in torch.randperm(file.num_row_groups).tolist():
            if group % mine.num_workers != mine.id:
                continue
            table = file.read_row_group(group, use_threads=False)
            x = table["x"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
            y = table["label"].to_numpy()
            for rows in torch.randperm(len(table)).numpy().reshape(-1, _BATCH):
                yield torch.from_numpy(x[rows]), torch.from_numpy(y[rows])


@contextlib.contextmanager
def _pyarrow(folder: Path, workers: int) -> Iterator[Iterable[Any]]:
    yield DataLoader(_RowGroups(folder / "a.parquet"), batch_size=None, num_workers=workers, persistent_workers=True)


def _write_parquet(folder: Path, rows: np.ndarray[Any, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    x = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    table = pa.table({"x": x, "label": np.arange(len(rows)) % 1000})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=4096)


def _write_arrays(folder: Path, rows: np.ndarray[Any, Any]) -> None:
    np.save(folder / "x.npy", rows)
    np.save(folder / "y.npy", np.arange(len(rows)) % 1000)


def _prepserver(source: Callable[[Path], SourceSpec], order: Batching = "shuffle-batch-repeat") -> Loader:
    @contextlib.contextmanager
    def made(folder: Path, workers: int) -> Iterator[Iterable[Any]]:
        with PrepClient(source(folder), [], batch_size=_BATCH, shuffle=True, order=order, workers=workers) as client:
            yield client

    return made


def _arrays(folder: Path) -> SourceSpec:
    return Arrays(x=folder / "x.npy", label=folder / "y.npy")


def _parquet(folder: Path) -> SourceSpec:
    return Parquet(folder / "a.parquet", columns={"x": kinds.Array((256,)), "label": kinds.Label()})


def _composed(folder: Path) -> SourceSpec:
    return Concat([Take(_arrays(folder), _ROWS // 32), Skip(_arrays(folder), _ROWS // 32)])


def _write_tfrecord(folder: Path, rows: np.ndarray[Any, Any]) -> None:
    import tfrecord
    from tfrecord.tools.tfrecord2idx import create_index

    writer = tfrecord.TFRecordWriter(str(folder / "a.tfrecord"))
    for number, row in enumerate(rows[: len(rows) // 8]):
        writer.write({"x": (row.tolist(), "float"), "label": (number % 1000, "int")})
    writer.close()
    create_index(str(folder / "a.tfrecord"), str(folder / "a.index"))


FORMATS: dict[str, Format] = {
    "Arrays": Format(
        _write_arrays,
        _arrays,
        {
            "DataLoader": _loader(_Mapped),
            "DataLoader, whole batches": _loader(_MappedBatches, lambda batch: batch),
            "prepserver, composed": _prepserver(_composed),
        },
        1.5,
    ),
    "TFRecord": Format(
        _write_tfrecord,
        lambda folder: TFRecord(folder / "a.tfrecord", {"x": kinds.Array((240,)), "label": kinds.Label()}),
        {"tfrecord": _tfrecord},
        0.8,
    ),
    "Parquet": Format(
        _write_parquet,
        _parquet,
        {"pyarrow": _pyarrow, "prepserver, all rows": _prepserver(_parquet)},
        0.8,
        "batch-shuffle-repeat",
    ),
}


def _tar_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tar-samples", type=int, default=0, help="measure the index of so many samples in 100 tars")


def _tars(run: Run, count: int) -> Figures:
    first = run.scratch / "000.tar"
    with first.open("wb") as file:
        for number in range(count // 100):
            for extension, data in (("jpg", b"any"), ("cls", b"%d" % (number % 1000))):
                member = tarfile.TarInfo(f"{number:09}.{extension}")
                member.size = len(data)
                file.write(member.tobuf(tarfile.USTAR_FORMAT) + data.ljust(tarfile.BLOCKSIZE, b"\0"))
    for number in range(1, 100):
        os.link(first, run.scratch / f"{number:03}.tar")
    spec = Tar(f"{run.scratch}/{{000..099}}.tar", "jpg", "cls")
    begun_s = time.monotonic()
    info = build_index(spec, run.scratch / "index")
    listed_s, opened_s = time.monotonic() - begun_s, []
    for _ in range(run.rounds(10)):
        begun_s = time.monotonic()
        source = open_source(spec, info.path)
        opened_s.append(time.monotonic() - begun_s)
        source.read(info.samples // 2)
    return {"samples": info.samples, "bytes": info.path.stat().st_size, "listed_s": listed_s, "opened_s": opened_s}


def measure(run: Run) -> Figures:
    if run.options.tar_samples:
        return {"tars": _tars(run, run.options.tar_samples)}
    rows = np.random.default_rng(0).standard_normal((_ROWS // (16 if run.smoke else 1), 256), dtype=np.float32)
    contenders: list[tuple[str, str, Path, Loader]] = []
    left_out: dict[str, str] = {}
    for name, form in FORMATS.items():
        folder = run.scratch / name
        folder.mkdir()
        try:
            form.write(folder, rows[:, : _FLOATS[name]])
        except ImportError as error:
            left_out[name] = str(error)
            continue
        own = _prepserver(form.source, form.order)
        contenders += [(name, reader, folder, each) for reader, each in {"prepserver": own, **form.rivals}.items()]
    rounds = []
    for _ in range(run.rounds(3)):
        cells = []
        for name, reader, folder, each in contenders:
            say(f"{name}: {reader}")
            with each(folder, run.workers) as batches, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # arrays that are read-only
                found = rate(batches, *((0.5, 0.5) if run.smoke else (2.0, 3.0)))
            cells.append({"format": name, "reader": reader, **found})
        rounds.append(cells)
    return {"workers": run.workers, "left_out": left_out, "rounds": rounds}


def rate(batches: Iterable[Any], warm_s: float, window_s: float) -> dict[str, float]:
    """Rows a second and CPU seconds of the whole tree per million rows, in a window after a warm-up."""
    begun = before = rows = 0.0
    ends = time.monotonic() + warm_s
    cpu = busy = 0.0
    while True:
        for batch in batches:
            now = time.monotonic()
            rows += len(batch["label"] if isinstance(batch, dict) else batch[1])
            if now < ends:
                continue
            if begun:
                used_s, all_s = cpu_s(tree([_PID])) - cpu, machine_busy_s() - busy
                taken = rows - before
                return {
                    "rows_per_s": taken / (now - begun),
                    "cpu_s_per_million": used_s / taken * 1e6,
                    "others_cores": max(0.0, (all_s - used_s) / (now - begun)),
                }
            begun, before, ends = now, rows, now + window_s
            cpu, busy = cpu_s(tree([_PID])), machine_busy_s()


def sheets(result: Figures) -> list[Sheet]:
    if tars := result.get("tars"):
        sheet = Sheet("The index of 100 tars", ("samples", "bytes per sample", "listed in s", "opened in ms"))
        per_sample, opened = tars["bytes"] / tars["samples"], [each * 1e3 for each in tars["opened_s"]]
        sheet.rows.append((str(tars["samples"]), f"{per_sample:.1f}", f"{tars['listed_s']:.0f}", spread(opened, ".1f")))
        return [sheet]
    rounds = result["rounds"]
    sheet = Sheet("Rows of 1 kB", ("format", "reader", "rows/s", "CPU s per million"))
    targets = []
    for name, form in FORMATS.items():
        for reader in ("prepserver", *form.rivals):
            which = {"format": name, "reader": reader}
            found = (values(rounds, figure, which) for figure in ("rows_per_s", "cpu_s_per_million"))
            sheet.rows.append(
                (name, reader, *(spread(each, form) for each, form in zip(found, (".0f", ".1f"), strict=True)))
            )
        for place, reader in enumerate(form.rivals):
            which = {"format": name, "reader": reader}
            ours, bound = {**which, "reader": "prepserver"}, None if place else form.least
            targets.append(Target(f"{name}: prepserver / {reader}", "rows_per_s", ours, which, bound))
    return [sheet, target_sheet("Ratios, median over rounds (min-max)", rounds, targets)]


def remarks(result: Figures) -> list[str]:
    left = [f"Left out: {name} ({why})." for name, why in result.get("left_out", {}).items()]
    return left + disturbed(result.get("rounds", []))


CASE = Case("Records of 1 kB", measure, sheets, remarks, options=_tar_options)
