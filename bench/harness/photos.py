"""The data that every contender reads: a list file with absolute paths, the same for all.

Photos are listed several times over, so that an epoch is long enough for steady figures. No contender keeps decoded
pictures, so a repeated file costs as much as a new one. All files are read once before measuring, so that they are in
the page cache: work is compared, not disks.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.harness.fingerprint import ROOT

_ENDINGS = (".jpg", ".jpeg")
_SYNTHETIC_FILES = 400


@dataclass(frozen=True, slots=True)
class Photos:
    """JPEG files.

    Attributes:
        what: Describes them in the report.
        files: (path, label).
        nbytes: The size of all files together.
    """

    what: str
    files: list[tuple[Path, int]]
    nbytes: int


def find_photos(given: str | None, scratch: Path) -> Photos:
    """Those in `given`, else $PREPSERVER_BENCH_DATA, else beside the checkout, else synthetic ones in `scratch`."""
    named = given or os.environ.get("PREPSERVER_BENCH_DATA")
    beside = ROOT.parent / "shared" / "data" / "photos"
    if named:
        folder = Path(named)
    elif beside.is_dir():
        folder = beside
    else:
        folder = draw(scratch / "synthetic")
    photos = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _ENDINGS)
    if not photos:
        raise SystemExit(f"no JPEG files under {folder}")
    labels = {name: label for label, name in enumerate(sorted({p.parent for p in photos}))}
    nbytes = sum(len(p.read_bytes()) for p in photos)  # now they are in the page cache
    kind = "synthetic JPEGs" if folder.is_relative_to(scratch) else "photos (JPEG)"
    what = f"{len(photos)} {kind}, {nbytes / len(photos) / 1000:.0f} kB each on average"
    return Photos(what, [(p.absolute(), labels[p.parent]) for p in photos], nbytes)


def draw(folder: Path) -> Path:
    """Writes synthetic JPEGs as files, because a DataLoader reads files."""
    from prepserver.pipeline.sources import SyntheticImages
    from prepserver.source import build_index, open_source

    spec = SyntheticImages(_SYNTHETIC_FILES, (400, 500))
    source = open_source(spec, build_index(spec, folder.parent / "index", lambda _found: None).path)
    for index in range(_SYNTHETIC_FILES):
        sample = source.read(index)
        path = folder / f"{sample['label'] % 10}" / f"{index:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample["image"])
    return folder


def write_boxes(photos: Photos, samples: int, path: Path) -> Path:
    """Writes a file in COCO's format, whose root is ``/``: `samples` photos with 1 to 14 random boxes, as COCO has."""
    rng, images, boxes = np.random.default_rng(0), list[Any](), list[Any]()
    sizes = [Image.open(file).size for file, _ in photos.files]
    for number in range(samples):
        (file, _), (width, height) = photos.files[number % len(sizes)], sizes[number % len(sizes)]
        images.append({"id": number, "file_name": str(file)[1:], "height": height, "width": width})
        for _ in range(int(rng.integers(1, 15))):
            left, right = sorted(rng.uniform(0, width, 2).round(2).tolist())
            top, bottom = sorted(rng.uniform(0, height, 2).round(2).tolist())
            bbox = [left, top, right - left, bottom - top]
            boxes.append({"id": len(boxes), "image_id": number, "category_id": 1, "iscrowd": 0, "bbox": bbox})
    path.write_text(json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}))
    return path


def write_list(photos: Photos, samples: int, path: Path) -> Path:
    """Writes a list of `samples` samples, all photos again and again; returns `path`."""
    chosen = itertools.islice(itertools.cycle(photos.files), samples)
    path.write_text("".join(f"{file}\t{label}\n" for file, label in chosen))
    return path
