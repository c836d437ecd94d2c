"""What does it save to decode photos of 12 megapixels at a half, a quarter or an eighth of their size?

Twelve pictures of 3000x4000. Each is a mosaic of photos at their own size, side by side in lines, JPEG at quality 90
with 4:2:0. Mosaics are harder than photos of that size: there is detail in every pixel, which takes longer to decode
and is where scaled decoding errs.

A worker without a daemon (`bench.harness.worker`), one thread, fills eight rows at a time, from files and from the same
pictures packed, with the compiled kernels where there are any: with scaled decoding, and with every plan set to the
full size from outside. Beside it simplejpeg and torch do the same by hand: a whole decode into a buffer that is used
again, the same crop, an antialiased resize. Fifteen rounds; in each, all variants fill the same positions in turns, and
a ratio is taken within a round.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from bench.harness.case import Case, Figures, Run
from bench.harness.photos import Photos, write_list
from bench.harness.server import run_cli
from bench.harness.tables import Sheet, spread
from bench.harness.worker import Worker

_SIZE = (3000, 4000)
_QUALITY = 90
_LISTED = 16_384  # samples, so that no position comes twice
_CHUNK = 8
_SCALED, _WHOLE = "scaled", "whole"

Fill = Callable[[int, int], None]
"""Fills the rows of so many positions from a position on."""


def measure(run: Run) -> Figures:
    import torch

    torch.set_num_threads(1)
    mosaics = lay_out(run.photos, 2 if run.smoke else 12, run.scratch / "mosaics")
    packed = run.scratch / "packed"
    run_cli("pack", str(write_list(mosaics, len(mosaics.files), run.scratch / "once.txt")), str(packed), "--quiet")
    listed = write_list(mosaics, _LISTED, run.scratch / "list.txt")
    rounds = run.rounds(15)
    cells = []
    for words, ops, views in _pipelines():
        variants: dict[str, Fill] = {}
        for form, dataset in (("files", listed), ("packed", packed)):
            worker = Worker(dataset, run.scratch, ops, views, rows=2 * _CHUNK)
            variants[f"{form}, {_SCALED}"] = worker.fill_rows
            variants[f"{form}, {_WHOLE}"] = whole_decodes()(worker.fill_rows)
        cells += in_turns(words, variants, rounds)
    cells += in_turns(_pipelines()[0][0], {"simplejpeg and torch": _kernels(mosaics)}, rounds)
    return {"mosaics": mosaics.what, "cells": cells}


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


@contextmanager
def whole_decodes() -> Iterator[None]:
    """Everything is decoded at its full size."""
    from prepserver.transform import geometry
    from prepserver.transform.ops import random_resized_crop

    def full_size(_rows: int, _columns: int, _size: tuple[int, int]) -> int:
        return 1

    with (
        mock.patch.object(geometry, "scale_for", full_size),
        mock.patch.object(random_resized_crop, "scale_for", full_size),
    ):
        yield


def _kernels(mosaics: Photos) -> Fill:
    """Decode, crop and resize by hand, by simplejpeg and torch."""
    import numpy as np
    import simplejpeg
    import torch

    from prepserver.pipeline.ops import RandomResizedCrop
    from prepserver.pipeline.pipeline import Pipeline
    from prepserver.transform import RowMaker, SampleKey

    maker = RowMaker(Pipeline.from_ops([RandomResizedCrop(224)]))
    files = [path.read_bytes() for path, _ in mosaics.files]
    buffer, row = np.zeros(3 * _SIZE[0] * _SIZE[1], np.uint8), np.zeros((224, 224, 3), np.uint8)

    def fill(position: int, count: int) -> None:
        for each in range(position, position + count):
            image = simplejpeg.decode_jpeg(files[each % len(files)], buffer=buffer)
            with whole_decodes():
                crop: Any = maker.plan(*_SIZE, SampleKey(0, 0, each)).part.of(image)
            source = torch.from_numpy(crop).permute(2, 0, 1).unsqueeze(0)
            target = torch.from_numpy(row).permute(2, 0, 1).unsqueeze(0)
            torch.ops.aten._upsample_bilinear2d_aa.out(source, [224, 224], False, None, None, out=target)

    return fill


def in_turns(pipeline: str, variants: dict[str, Fill], rounds: int) -> list[dict[str, Any]]:
    """Images/s of each variant, once per round."""
    found: dict[str, list[float]] = {words: [] for words in variants}
    for fill in variants.values():
        fill(0, 2)  # pages, caches
    for number, (words, fill) in itertools.product(range(rounds), variants.items()):
        began_s = time.perf_counter()
        fill(_CHUNK * (number + 1), _CHUNK)
        found[words].append(_CHUNK / (time.perf_counter() - began_s))
    return [{"pipeline": pipeline, "way": words, "per_s": per_s} for words, per_s in found.items()]


def sheets(result: Figures) -> list[Sheet]:
    figures = {(cell["pipeline"], cell["way"]): cell["per_s"] for cell in result["cells"]}
    pipelines = list(dict.fromkeys(pipeline for pipeline, _ in figures))
    sheet = Sheet("Images/s of one worker, 12 megapixels each (median and min-max over rounds)", ("", *pipelines))
    for words in dict.fromkeys(words for _, words in figures):
        sheet.rows.append((words, *(spread(figures.get((pipeline, words), []), ".1f") for pipeline in pipelines)))
    quotients = Sheet("Scaled / whole, by round", ("", *pipelines))
    for form in ("files", "packed"):
        pairs = [(figures[each, f"{form}, {_SCALED}"], figures[each, f"{form}, {_WHOLE}"]) for each in pipelines]
        values = [[scaled / whole for scaled, whole in zip(*pair, strict=True)] for pair in pairs]
        quotients.rows.append((form, *(spread(each, ".2f") for each in values)))
    return [sheet, quotients]


CASE = Case("Photos of 12 megapixels", measure, sheets, remarks=lambda figures: [figures["mosaics"]])
