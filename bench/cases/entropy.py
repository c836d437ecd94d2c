"""What do our own Huffman decoder and the vector instructions save, and what do turned photos and restart markers cost?

A worker without a daemon (`bench.harness.worker`), one thread, photos in the page cache. Three tables:

- Huffman codes are decoded by libjpeg-turbo (Pillow's) and by `prepserver/transform/native/entropy.c`, on files and on
  the same photos packed. The rest of decoding is libjpeg-turbo's both times, and the pixels are the same.
- The resize runs in plain C, by AVX2 and by AVX-512, which also read scans and turn pixels.
- The same photos, encoded again by Pillow: upright, with EXIF orientations, and with restart markers. Crops are drawn
  on the upright image, so those of a photo turned by 90 degrees are others.

Fifteen rounds; in each, all variants fill the same samples in turns, and a ratio is taken within a round.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.photos import Photos, write_list
from bench.harness.server import run_cli
from bench.harness.tables import Sheet, spread
from bench.harness.worker import PYTHON, Worker, no_collection, timed

_ENTROPY = {"libjpeg-turbo's": False, "our own": True}
_KINDS: dict[str, tuple[int, dict[str, Any]]] = {  # EXIF orientation, and options of Pillow's
    "upright": (1, {}), "turned by 90 degrees": (6, {}), "turned by 180": (3, {}),
    "restart markers": (1, {"restart_marker_blocks": 4}),
}  # fmt: skip
_SAMPLES = 1600

Variant = Callable[[int], dict[str, float]]
"""Fills one block; returns microseconds per sample for each part."""


def measure(run: Run) -> Figures:
    import torch

    from prepserver.transform import native
    from prepserver.transform.native.compiled import VECTORS

    compiled = native.kernels()
    if compiled is None or not compiled.own_entropy:
        raise SystemExit(f"nothing to compare: {native.path().reason}")
    torch.set_num_threads(1)
    rounds = run.rounds(15)
    listed, packed = run.listed(max(_SAMPLES, len(run.photos.files))), run.scratch / "packed"
    run_cli("pack", str(listed), str(packed), "--quiet")
    workers = {"files": Worker(listed, run.scratch), "packed": Worker(packed, run.scratch)}
    cells = []
    for form, worker in workers.items():
        variants = {words: partial(_with, compiled.use_own_entropy, own, worker) for words, own in _ENTROPY.items()}
        cells.append({"form": form, "rounds": in_turns(variants, rounds)})
    best = VECTORS.index(compiled.vectors)
    vectors = {words: partial(_with, compiled.use_vectors, words, workers["files"]) for words in VECTORS[: best + 1]}
    kinds = {kind: partial(timed, _worker_of(kind, run)) for kind in _KINDS}
    return {"cells": cells, "vectors": in_turns(vectors, rounds), "kinds": in_turns(kinds, rounds)}


def in_turns(variants: Mapping[str, Variant], rounds: int) -> list[dict[str, dict[str, float]]]:
    """What each variant takes; all fill a block before the next one."""
    for fill in variants.values():
        fill(0)
    with no_collection():
        return [{words: fill(block) for words, fill in variants.items()} for block in range(1, rounds + 1)]


def _with(switch: Callable[[Any], None], to: Any, worker: Worker, block: int) -> dict[str, float]:
    switch(to)
    return timed(worker, block)


def _worker_of(kind: str, run: Run) -> Worker:
    """A worker on the photos, encoded again by Pillow with the same tables."""
    from PIL import Image

    orientation, options = _KINDS[kind]
    tags = Image.Exif()
    tags[0x0112] = orientation
    folder = run.scratch / kind
    folder.mkdir()
    files = []
    for number, (path, label) in enumerate(run.photos.files[:_SAMPLES]):
        image, made = Image.open(path), io.BytesIO()
        keeps = {"quality": "keep"} if image.format == "JPEG" else {}
        image.save(made, "JPEG", exif=tags, **keeps, **options)
        files.append((folder / f"{number:05}.jpg", label))
        files[-1][0].write_bytes(made.getvalue())
    listed = write_list(Photos(kind, files, 0), _SAMPLES, folder / "list.txt")
    return Worker(listed, run.scratch)


def sheets(result: Figures) -> list[Sheet]:
    entropy = Sheet(
        "A worker's time by the Huffman decoder, microseconds per sample",
        ("Huffman decoding is", *_ENTROPY, "ratio"),
    )
    parts = {"decode, resize and flip": ("decode", "resize"), "all": (PYTHON, "system", "decode", "resize")}
    for cell in result["cells"]:
        for words, names in parts.items():
            theirs, ours = ([sum(found[way][name] for name in names) for found in cell["rounds"]] for way in _ENTROPY)
            quotients = [a / b for a, b in zip(theirs, ours, strict=True)]
            entropy.rows.append((f"{cell['form']}: {words}", spread(theirs), spread(ours), spread(quotients, ".2f")))
    return [
        entropy,
        _sheet("A worker's time by the resize's instructions, microseconds per sample", result["vectors"]),
        _sheet("A worker's time by the kind of file, microseconds per sample", result["kinds"]),
    ]


def _sheet(title: str, rounds: list[dict[str, dict[str, float]]]) -> Sheet:
    """All variants, and what each takes relative to the first."""
    sheet = Sheet(title, ("", "per sample", f'relative to "{next(iter(rounds[0]))}"'))
    totals = [{words: sum(found.values()) for words, found in each.items()} for each in rounds]
    for words in rounds[0]:
        shares = [each[words] / next(iter(each.values())) for each in totals]
        sheet.rows.append((words, spread([each[words] for each in totals]), spread(shares, ".2f")))
    return sheet


CASE = Case("Huffman decoding", measure, sheets)
