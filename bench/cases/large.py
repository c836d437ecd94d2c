"""Photos of 12 megapixels: what decoding at a half, a quarter or an eighth saves.

``python bench/large.py [--data DIR] [--smoke] [--markdown]``. Writes ``bench/out/large.json``.

One process, one thread, no daemon: the worker's own `fill`, with scaling and without it, in turns; beside it the
kernels that one would call oneself. README.md has the method.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from photos import Photos, find_photos, write_list
from server import run_cli
from tables import Sheet, spread
from worker_profile import Worker

_SIZE = (3000, 4000)
_QUALITY = 90
_LISTED = 16_384  # samples; no position comes twice
_CHUNK = 8
_SCALED, _WHOLE = "scaled", "whole"
_KERNELS = ("simplejpeg and torch", "simplejpeg and cv2")

Fill = Callable[[int, int], None]


def main() -> None:
    command.run(
        "large", "Photos of 12 megapixels, with scaled decoding and without.",
        lambda arguments: measure(arguments.data, *((2, 1) if arguments.smoke else (12, 15))),
        sheets, takes_workers=False,
        remarks=lambda figures: [figures["mosaics"]],
    )  # fmt: skip


def measure(data: str | None, files: int, rounds: int) -> dict[str, Any]:
    import torch

    machine = fingerprint()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        photos = find_photos(data, scratch)
        mosaics = lay_out(photos, files, scratch / "mosaics")
        listed, packed = scratch / "list.txt", scratch / "packed"
        write_list(mosaics, files, listed)
        run_cli("pack", str(listed), str(packed), "--quiet")
        write_list(mosaics, _LISTED, listed)
        cells = [
            cell
            for words, ops, views in _pipelines()
            for cell in cells_of(words, _ways(listed, packed, scratch, ops, views), rounds)
        ]
        cells += cells_of("RandomResizedCrop(224), flip", _kernels(mosaics), rounds)
    return {"machine": machine, "mosaics": mosaics.what, "cells": cells}


def lay_out(photos: Photos, files: int, folder: Path) -> Photos:
    """Writes `files` mosaics of 12 megapixels: photos side by side, in lines, at their own size."""
    import numpy as np
    import simplejpeg

    folder.mkdir()
    chance = random.Random(1)
    paths = []
    for number in range(files):
        mosaic = np.zeros((*_SIZE, 3), np.uint8)
        top = 0
        while top < _SIZE[0]:
            left, below = 0, _SIZE[0]
            while left < _SIZE[1]:
                tile = simplejpeg.decode_jpeg(chance.choice(photos.files)[0].read_bytes())
                place = mosaic[top:below, left : left + tile.shape[1]]
                place[: tile.shape[0]] = tile[: place.shape[0], : place.shape[1]]
                left, below = left + tile.shape[1], min(below, top + tile.shape[0])
            top = below
        paths.append(folder / f"{number:02}.jpg")
        paths[-1].write_bytes(simplejpeg.encode_jpeg(mosaic, _QUALITY, "RGB", "420"))
    nbytes = sum(path.stat().st_size for path in paths)
    size = f"{_SIZE[0]}x{_SIZE[1]}, JPEG, quality {_QUALITY}, 4:2:0, {nbytes / files / 1e6:.1f} MB each on average"
    return Photos(f"{files} mosaics of {photos.what}: {size}", [(path, 0) for path in paths], nbytes)


def _pipelines() -> list[tuple[str, list[Any], int]]:
    from prepserver.pipeline.ops import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

    train = [RandomResizedCrop(224), RandomHorizontalFlip()]
    return [
        ("RandomResizedCrop(224), flip", train, 1),
        ("RandomResizedCrop(96), flip", [RandomResizedCrop(96), RandomHorizontalFlip()], 1),
        ("Resize(256), CenterCrop(224)", [Resize(256), CenterCrop(224)], 1),
        ("RandomResizedCrop(224), flip, 4 views", train, 4),
    ]


def _ways(listed: Path, packed: Path, scratch: Path, ops: list[Any], views: int) -> dict[str, Fill]:
    ways: dict[str, Fill] = {}
    for form, dataset in (("files", listed), ("packed", packed)):
        worker = Worker(dataset, scratch, ops, views, rows=2 * _CHUNK)
        ways[f"{form}, {_SCALED}"] = worker.fill_rows
        ways[f"{form}, {_WHOLE}"] = _unscaled(worker.fill_rows)
    return ways


def _unscaled(fill_rows: Fill) -> Fill:
    def fill(position: int, count: int) -> None:
        with whole_decodes():
            fill_rows(position, count)

    return fill


@contextmanager
def whole_decodes() -> Iterator[None]:
    """Everything is decoded at its size."""
    from prepserver.transform import geometry

    real = geometry.scale_for
    geometry.scale_for = lambda _rows, _columns, _size: 1
    try:
        yield
    finally:
        geometry.scale_for = real


def _kernels(mosaics: Photos) -> dict[str, Fill]:
    """Whole decode, crop, resize by hand: torch antialiased; cv2, where there is one, not."""
    import numpy as np
    import simplejpeg
    import torch

    from prepserver.pipeline.ops import RandomResizedCrop
    from prepserver.pipeline.pipeline import Pipeline
    from prepserver.transform import RowMaker, SampleKey

    maker = RowMaker(Pipeline.from_ops([RandomResizedCrop(224)]))
    files = [path.read_bytes() for path, _ in mosaics.files]
    buffer, row = np.zeros(3 * _SIZE[0] * _SIZE[1], np.uint8), np.zeros((224, 224, 3), np.uint8)

    def crop(position: int) -> Any:
        image = simplejpeg.decode_jpeg(files[position % len(files)], buffer=buffer)
        with whole_decodes():
            part = maker.plan(*_SIZE, SampleKey(0, 0, position)).part
        return part.of(image)

    def by_torch(position: int, count: int) -> None:
        for each in range(position, position + count):
            source = torch.from_numpy(crop(each)).permute(2, 0, 1).unsqueeze(0)
            target = torch.from_numpy(row).permute(2, 0, 1).unsqueeze(0)
            torch.ops.aten._upsample_bilinear2d_aa.out(source, [224, 224], False, None, None, out=target)

    ways: dict[str, Fill] = {_KERNELS[0]: by_torch}
    try:
        import cv2
    except ImportError:
        return ways
    cv2.setNumThreads(0)

    def by_cv2(position: int, count: int) -> None:
        for each in range(position, position + count):
            cv2.resize(crop(each), (224, 224), dst=row, interpolation=cv2.INTER_LINEAR)

    return {**ways, _KERNELS[1]: by_cv2}


def cells_of(pipeline: str, ways: dict[str, Fill], rounds: int) -> list[dict[str, Any]]:
    """Images/s of each way, once in each round: all make the same positions in turns."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for fill in ways.values():
        fill(0, 2)  # pages, caches
    for number, (way, fill) in itertools.product(range(rounds), ways.items()):
        began_s = time.perf_counter()
        fill(_CHUNK * (number + 1), _CHUNK)
        found[way].append(_CHUNK / (time.perf_counter() - began_s))
    return [{"pipeline": pipeline, "way": way, "per_s": values} for way, values in found.items()]


def sheets(result: dict[str, Any]) -> list[Sheet]:
    figures = {(cell["pipeline"], cell["way"]): cell["per_s"] for cell in result["cells"]}
    pipelines = list(dict.fromkeys(pipeline for pipeline, _ in figures))
    sheet = Sheet("Images/s of one worker, 12 megapixels each (median and min-max over rounds)", ("", *pipelines))
    for way in dict.fromkeys(way for _, way in figures):
        sheet.rows.append((way, *(spread(figures.get((pipeline, way), []), ".1f") for pipeline in pipelines)))
    ratios = Sheet("Scaled over whole, round by round", ("", *pipelines))
    for form in ("files", "packed"):
        pairs = [(figures[each, f"{form}, {_SCALED}"], figures[each, f"{form}, {_WHOLE}"]) for each in pipelines]
        values = [[scaled / whole for scaled, whole in zip(*pair, strict=True)] for pair in pairs]
        ratios.rows.append((form, *(spread(each, ".2f") for each in values)))
    return [sheet, ratios]


if __name__ == "__main__":
    main()
