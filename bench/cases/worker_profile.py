"""Where a worker's time goes on photos, sample by sample: kernels, system calls, and the Python around them.

``python bench/worker_profile.py [--data DIR] [--smoke] [--markdown]``. Writes ``bench/out/worker_profile.json``.

One process, one thread, no daemon: the worker's own `fill` on a ring in shared memory, on photos in the page cache.
A clock is put around each system call and each kernel (decode, resize, flip) from outside; what lies between them is
Python, with its cache misses, with the calls into ctypes and numpy, and with the clock's own microsecond. README.md
has the method.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from photos import find_photos, write_list
from server import run_cli
from tables import Sheet, spread

_TARGET = 0.05
_CHUNK = 16
_SAMPLES = 20 * _CHUNK  # a block
_KINDS = ("files, compiled kernels", "files, pure path", "packed, compiled kernels", "packed, pure path")


def main() -> None:
    command.run(
        "worker_profile", "Where a worker's time goes.",
        lambda arguments: measure(arguments.data, 1 if arguments.smoke else 15),
        sheets, takes_workers=False,
    )  # fmt: skip


def measure(data: str | None, blocks: int) -> dict[str, Any]:
    import torch

    from prepserver.transform import native

    machine = fingerprint()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        photos = find_photos(data, scratch)
        listed = scratch / "list.txt"
        write_list(photos, max(1600, len(photos.files)), listed)
        packed = scratch / "packed"
        run_cli("pack", str(listed), str(packed), "--quiet")
        cells = []
        for kind in _KINDS:
            os.environ["PREPSERVER_NATIVE"] = "0" if "pure" in kind else "1"
            native.forget()
            if "compiled" in kind and native.path().name != "native":
                continue
            cells.append({"kind": kind, **profile(packed if "packed" in kind else listed, scratch, blocks)})
        os.environ.pop("PREPSERVER_NATIVE")
        native.forget()
    return {"machine": machine, "photos": photos.what, "cells": cells}


def profile(dataset: Path, scratch: Path, blocks: int) -> dict[str, Any]:
    """Microseconds a sample: of each kind of call, and of what lies between them; and which Python that is."""
    worker = Worker(dataset, scratch)
    worker.fill(0)  # pages, caches, the order's windows
    gc.collect()
    gc.disable()  # as in a worker
    try:
        return {"blocks": [{**timed(worker, block), "parts": parted(worker, block)} for block in range(1, blocks + 1)]}
    finally:
        gc.enable()


def timed(worker: Worker, block: int) -> dict[str, float]:
    """One block with a clock around system calls and kernels alone."""
    clock = Clock()
    with clocked(clock, _calls()):
        worker.fill(block, clock.next_sample)
    clock.next_sample(0, 0)
    return {name: _middle(clock.samples, name) for name in (PYTHON, "system", "decode", "resize")}


def parted(worker: Worker, block: int) -> dict[str, float]:
    """The same with a clock around the parts of the path too, each of which costs a little more for it."""
    clock = Clock()
    with clocked(clock, _calls() + _parts()):
        worker.fill(block, clock.next_sample)
    clock.next_sample(0, 0)
    return {name: _middle(clock.samples, name) for name in (*dict.fromkeys(part for *_, part in _parts()), PYTHON)}


def _middle(samples: list[dict[str, int]], name: str) -> float:
    """The middle one of all samples: whoever was interrupted in the midst of one does not count for more."""
    return statistics.median(sample.get(name, 0) for sample in samples) / 1e3


PYTHON = "python"


class Clock:
    """Whose turn it is, and for how long it was, sample by sample. What is called inside another call is its own."""

    def __init__(self) -> None:
        self.samples: list[dict[str, int]] = []
        self._spent: dict[str, int] = {}
        self._stack = [PYTHON]
        self._since_ns = time.perf_counter_ns()

    def next_sample(self, _position: int, _index: int) -> None:
        """In the place of a worker's mark."""
        self._turn()
        if self._spent:
            self.samples.append(self._spent)
        self._spent = {}

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def clocked(*arguments: Any, **options: Any) -> Any:
            self._turn()
            self._stack.append(name)
            try:
                return function(*arguments, **options)
            finally:
                self._turn()
                self._stack.pop()

        return clocked

    def _turn(self) -> None:
        now_ns = time.perf_counter_ns()
        name = self._stack[-1]
        self._spent[name] = self._spent.get(name, 0) + now_ns - self._since_ns
        self._since_ns = time.perf_counter_ns()


Place = tuple[Any, str, str]  # an object, the name of a function that is looked up in it, what its time counts as


def _calls() -> list[Place]:
    """All system calls and kernels on the way of a sample."""
    import simplejpeg
    import torch

    from prepserver.source import packed, samples
    from prepserver.transform import native, resize

    places: list[Place] = [
        *((samples.os, name, "system") for name in ("open", "fstat", "read", "close")),
        (packed.os, "pread", "system"),
        (simplejpeg, "decode_jpeg", "decode"),
        (torch, "flip", "resize"),
        *((resize._KERNELS, name, "resize") for name in resize._KERNELS),
    ]
    compiled = native.kernels()
    if compiled is not None:
        places += [(compiled, name, "decode") for name in ("_crop", "_crop_scan", "_region", "_scan")]
        places += [(compiled, name, "resize") for name in ("_resize", "_turn")]
    return places


def _parts() -> list[Place]:
    from prepserver.transform import indexed, rows
    from prepserver.transform.decode import Encoded
    from prepserver.transform.indexed import EncodedScan
    from prepserver.transform.rowmaker import RowMaker
    from prepserver.transform.whole import WholeCrop
    from prepserver.worker import fill

    return [
        (fill, "_read", "read"), (rows, "Encoded", "open"), (rows, "EncodedScan", "open"), (RowMaker, "plan", "plan"),
        (Encoded, "clean", "decoding"), (EncodedScan, "clean", "decoding"), (indexed, "cut", "decoding"),
        (RowMaker, "render", "resizing"), (WholeCrop, "make", "whole"),
    ]  # fmt: skip


@contextmanager
def clocked(clock: Clock, places: Sequence[Place]) -> Iterator[None]:
    """Puts the clock around these functions."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for where, name, part in places:
            if isinstance(where, dict):
                before.append((where, name, where[name]))
                where[name] = clock.around(part, where[name])
            else:
                before.append((where, name, getattr(where, name)))
                setattr(where, name, clock.around(part, getattr(where, name)))
        yield
    finally:
        for where, name, real in reversed(before):
            if isinstance(where, dict):
                where[name] = real
            else:
                setattr(where, name, real)


class Worker:
    """What a worker holds: an open source, an order, a ring, a maker, a statistics page."""

    def __init__(
        self, dataset: Path, scratch: Path, ops: list[Any] | None = None, views: int = 1, rows: int = 512
    ) -> None:
        from prepserver.memory.ring import Ring
        from prepserver.memory.segment import create_segment
        from prepserver.order import make_order
        from prepserver.pipeline.ops import RandomHorizontalFlip, RandomResizedCrop
        from prepserver.pipeline.pipeline import Pipeline
        from prepserver.pipeline.sources import FileList, Packed
        from prepserver.protocol.layout import sample_layout
        from prepserver.source import build_index, open_source
        from prepserver.telemetry.page import StatsPage, create_page
        from prepserver.transform import row_makers
        from prepserver.worker.fill import Stream

        spec = Packed(str(dataset)) if dataset.is_dir() else FileList(str(dataset))
        source = open_source(spec, build_index(spec, scratch / "index", lambda _found: None).path)
        self._stream = Stream(source, make_order("cyclic", len(source), 0), 0)
        pipeline = Pipeline.from_ops(ops or [RandomResizedCrop(224), RandomHorizontalFlip()], views)
        self._makers = row_makers(pipeline)
        layout = sample_layout(rows, pipeline.row.shape, pipeline.row.dtype, views)
        descriptor = create_segment("bench-ring", layout.nbytes)
        self._ring = Ring(descriptor, layout)
        os.close(descriptor)
        self._ring.mapping.populate(write=True)
        descriptor = create_page("bench-page")
        self._page = StatsPage(descriptor, writable=True)
        os.close(descriptor)

    def fill(self, block: int, mark: Callable[[int, int], None] | None = None) -> None:
        """The rows of one block of positions, as a worker fills them."""
        for position in range(block * _SAMPLES, (block + 1) * _SAMPLES, _CHUNK):
            self.fill_rows(position, _CHUNK, mark)

    def fill_rows(self, position: int, count: int, mark: Callable[[int, int], None] | None = None) -> None:
        """The rows of a chunk."""
        from prepserver.worker.fill import Target, fill

        fill(self._stream, [Target(self._makers, self._ring)], position, count, mark or self._page.begin_sample)


def sheets(result: dict[str, Any]) -> list[Sheet]:
    names = {
        "decode": "decode, in C (compiled: and resize, flip)", "resize": "resize and flip, in C",
        "system": "system calls", PYTHON: "Python",
    }  # fmt: skip
    columns = ("", *(cell["kind"] for cell in result["cells"]))
    sheet = Sheet("A worker's time, microseconds a sample (median and min-max over blocks)", columns)
    for name, words in names.items():
        values = [[found[name] for found in cell["blocks"]] for cell in result["cells"]]
        sheet.rows.append((words, *(spread(each, ".0f" if name in ("decode", "resize") else ".1f") for each in values)))
    shares = [[100 * python_share(found) for found in cell["blocks"]] for cell in result["cells"]]
    sheet.rows.append(("Python's share, %", *(spread(each, ".1f") for each in shares)))
    sheet.rows.append(("to reach", *(f"< {100 * _TARGET:g} %" for _ in shares)))
    sheet.rows.append((
        "reached", *("yes" if statistics.median(each) < 100 * _TARGET else "no" for each in shares)
    ))  # fmt: skip
    words_of = {
        "read": "finding the sample, reading", "open": "header", "plan": "random parameters",
        "decoding": "around decode", "resizing": "around resize", "whole": "around the one call for all these",
        PYTHON: "the rest: rows, labels, counters",
    }  # fmt: skip
    parts = Sheet("Which Python that is, microseconds a sample, with the clocks' own time", columns)
    for name, words in words_of.items():
        values = [[found["parts"][name] for found in cell["blocks"]] for cell in result["cells"]]
        parts.rows.append((words, *(spread(each, ".1f") for each in values)))
    return [sheet, parts]


def python_share(found: dict[str, Any]) -> float:
    """Of a block: what part of its time is Python."""
    return float(found[PYTHON] / sum(found[name] for name in (PYTHON, "system", "decode", "resize")))


if __name__ == "__main__":
    main()
