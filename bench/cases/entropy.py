"""What a worker's decoding and resizing take: by the one form of a kernel and by the other, and by the kind of file.

``python bench/entropy.py [--data DIR] [--smoke] [--markdown]``. Writes ``bench/out/entropy.json``.

One process, one thread, no daemon: the worker of worker_profile.py on photos in the page cache, in turns on the same
samples: Huffman codes by libjpeg-turbo and by our own decoder; the resize in plain C, by AVX2 and by AVX-512; and the
same photos upright, tagged as turned, and with restart markers. README.md has the method.
"""

from __future__ import annotations

import gc
import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from photos import Photos, find_photos, write_list
from server import run_cli
from tables import Sheet, spread
from worker_profile import PYTHON, Worker, timed

_ENTROPY = {"libjpeg-turbo's": False, "our own": True}
_KINDS: dict[str, tuple[int, dict[str, Any]]] = {  # EXIF orientation, and options of Pillow's
    "upright": (1, {}), "turned by 90 degrees": (6, {}), "turned by 180": (3, {}),
    "restart markers": (1, {"restart_marker_blocks": 4}),
}  # fmt: skip
_SAMPLES = 1600

Way = Callable[[int], dict[str, float]]


def main() -> None:
    command.run(
        "entropy", "A worker's kernels in their several forms, and on several kinds of files.",
        lambda arguments: measure(arguments.data, 1 if arguments.smoke else 15),
        sheets, takes_workers=False,
    )  # fmt: skip


def measure(data: str | None, blocks: int) -> dict[str, Any]:
    import torch

    from prepserver.transform import native

    machine = fingerprint()
    compiled = native.kernels()
    if compiled is None or not compiled.own_entropy:
        raise SystemExit(f"nothing to compare: {native.path().reason}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        photos = find_photos(data, scratch)
        listed, packed = scratch / "list.txt", scratch / "packed"
        write_list(photos, max(_SAMPLES, len(photos.files)), listed)
        run_cli("pack", str(listed), str(packed), "--quiet")
        workers = {"files": Worker(listed, scratch), "packed": Worker(packed, scratch)}
        cells = []
        for form, worker in workers.items():
            ways = {words: partial(_switched, compiled.use_own_entropy, own, worker) for words, own in _ENTROPY.items()}
            cells.append({"form": form, "rounds": in_turns(ways, blocks)})
        best = native.VECTORS.index(compiled.vectors)
        ways = {
            words: partial(_switched, compiled.use_vectors, words, workers["files"])
            for words in native.VECTORS[: best + 1]
        }
        vectors = in_turns(ways, blocks)
        kinds = in_turns({kind: _of_kind(kind, photos, scratch) for kind in _KINDS}, blocks)
    return {"machine": machine, "photos": photos.what, "cells": cells, "vectors": vectors, "kinds": kinds}


def in_turns(ways: dict[str, Way], blocks: int) -> list[dict[str, dict[str, float]]]:
    """What each way takes of each block; all come to a block before the next one."""
    for way in ways.values():
        way(0)
    gc.collect()
    gc.disable()  # as in a worker
    try:
        return [{words: way(block) for words, way in ways.items()} for block in range(1, blocks + 1)]
    finally:
        gc.enable()


def _switched(switch: Callable[[Any], None], to: Any, worker: Worker, block: int) -> dict[str, float]:
    switch(to)
    return timed(worker, block)


def _of_kind(kind: str, photos: Photos, scratch: Path) -> Way:
    """A worker on these photos, encoded again by Pillow with the same tables."""
    from PIL import Image

    orientation, options = _KINDS[kind]
    tags = Image.Exif()
    tags[0x0112] = orientation
    folder = scratch / kind
    folder.mkdir()
    files = []
    for number, (path, label) in enumerate(photos.files[:_SAMPLES]):
        image, made = Image.open(path), io.BytesIO()
        keeps = {"quality": "keep"} if image.format == "JPEG" else {}
        image.save(made, "JPEG", exif=tags, **keeps, **options)
        files.append((folder / f"{number:05}.jpg", label))
        files[-1][0].write_bytes(made.getvalue())
    listed = folder / "list.txt"
    write_list(Photos(photos.what, files, photos.nbytes), _SAMPLES, listed)
    return partial(timed, Worker(listed, scratch))


def sheets(result: dict[str, Any]) -> list[Sheet]:
    entropy = Sheet(
        "A worker's time by who decodes Huffman codes, microseconds a sample",
        ("Huffman decoding is", *_ENTROPY, "ratio"),
    )
    parts = {"decode, resize and flip": ("decode", "resize"), "all": (PYTHON, "system", "decode", "resize")}
    for cell in result["cells"]:
        for words, names in parts.items():
            theirs, ours = ([sum(found[way][name] for name in names) for found in cell["rounds"]] for way in _ENTROPY)
            ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
            entropy.rows.append((f"{cell['form']}: {words}", spread(theirs), spread(ours), spread(ratios, ".2f")))
    return [
        entropy,
        _sheet("A worker's time by the resize's instructions, microseconds a sample", result["vectors"]),
        _sheet("A worker's time by the kind of file, microseconds a sample", result["kinds"]),
    ]


def _sheet(title: str, rounds: list[dict[str, dict[str, float]]]) -> Sheet:
    """All ways of `rounds`, and what each takes in terms of the first."""
    sheet = Sheet(title, ("", "a sample", f'of "{next(iter(rounds[0]))}"'))
    totals = [{way: sum(found.values()) for way, found in each.items()} for each in rounds]
    for way in rounds[0]:
        shares = [each[way] / next(iter(each.values())) for each in totals]
        sheet.rows.append((way, spread([each[way] for each in totals]), spread(shares, ".2f")))
    return sheet


if __name__ == "__main__":
    main()
