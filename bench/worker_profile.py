"""Where a worker's time goes on photos, sample by sample: kernels, system calls, and the Python around them.

``python bench/worker_profile.py [--data DIR] [--smoke] [--markdown]``. Writes ``bench/out/worker_profile.json``.

One process, one thread, no daemon: the worker's own `fill` on a ring in shared memory, with the statistics page
that every worker marks. What counts as Python is what is left of `fill` when the same system calls and the same
kernels (decode, resize, flip) are called again with the very arguments that `fill` gave them. README.md has the
method.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from compare import OUT, load, save
from fingerprint import fingerprint, line
from photos import find_photos, write_list
from server import run_cli
from tables import Sheet, show, spread

_TARGET = 0.05
_CHUNK = 16
_SAMPLES = 20 * _CHUNK  # a block: what is measured in one go, before the other side has its turn
_KINDS = ("files, compiled kernels", "files, pure path", "packed, compiled kernels", "packed, pure path")
_COMPILED = ("_region", "_resize", "_scan")  # foreign functions of the compiled kernels


def main() -> None:
    parser = argparse.ArgumentParser(description="Where a worker's time goes.")
    parser.add_argument("--data", help="a folder of JPEGs")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, default=OUT / "worker_profile.json")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing, show the figures of this file")
    arguments = parser.parse_args()
    if arguments.show:
        result = load(arguments.show)
    else:
        result = measure(arguments.data, 2 if arguments.smoke else 12)
        save(result, arguments.json)
    print(line(result["machine"]))
    show(sheets(result), markdown=arguments.markdown)


def measure(data: str | None, blocks: int) -> dict[str, Any]:
    import torch

    from prepserver.transform import native

    machine = fingerprint()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        scratch = Path(name)
        photos = find_photos(data, scratch)
        listed = scratch / "list.txt"
        write_list(photos, max(2 * _SAMPLES, len(photos.files)), listed)
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
    """Microseconds of CPU a sample: of `fill`, of the bare calls, and of parts that can be called alone."""
    worker = Worker(dataset, scratch)
    worker.fill(0)  # pages, caches, the order's windows
    gc.collect()
    gc.disable()  # as in a worker
    rounds: list[dict[str, float]] = []
    for block in range(1, blocks + 1):
        with recorded() as calls:
            worker.fill(block)
        empty = [Call(_nothing, call.arguments, call.options) for call in calls]
        system = [call for call in calls if call.function in _SYSTEM_CALLS]
        # Twice in turns, and the less of each: a busy neighbour meets both sides.
        whole, bare = [], []
        for _ in range(2):
            whole.append(_us(worker.fill, block))
            bare.append(_us(again, calls))
        loop_us = _us(again, empty)
        found = {
            "whole_us": min(whole),
            "bare_us": min(bare) - loop_us,
            "system_us": _us(again, system) - loop_us * len(system) / len(calls),
            **worker.parts_us(block),
        }
        found["python_share"] = (found["whole_us"] - found["bare_us"]) / found["whole_us"]
        rounds.append(found)
    gc.enable()
    return {"rounds": rounds}


class Worker:
    """What a worker holds: an open source, an order, a ring, a maker, a statistics page."""

    def __init__(self, dataset: Path, scratch: Path) -> None:
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
        self._makers = row_makers(Pipeline.from_ops([RandomResizedCrop(224), RandomHorizontalFlip()]))
        row = self._makers["image"].row
        layout = sample_layout(512, row.shape, row.dtype)
        descriptor = create_segment("bench-ring", layout.nbytes)
        self._ring = Ring(descriptor, layout)
        os.close(descriptor)
        self._ring.mapping.populate(write=True)
        descriptor = create_page("bench-page")
        self._page = StatsPage(descriptor, writable=True)
        os.close(descriptor)

    def fill(self, block: int) -> None:
        """The rows of one block of positions, as a worker fills them."""
        from prepserver.worker.fill import fill

        for position in range(block * _SAMPLES, (block + 1) * _SAMPLES, _CHUNK):
            fill(self._stream, [(self._makers, self._ring)], position, _CHUNK, self._page.begin_sample)

    def parts_us(self, block: int) -> dict[str, float]:
        """Parts of the path that can be called by themselves."""
        from prepserver.transform.decode import Encoded
        from prepserver.transform.draw import SampleKey
        from prepserver.transform.indexed import EncodedScan

        first = block * _SAMPLES
        indices = self._stream.order.indices(first, _SAMPLES)
        samples = [self._stream.source.read(index).data for index in indices]
        keys = [SampleKey(0, first // self._stream.order.n, index) for index in indices]
        opened = [Encoded(data) if isinstance(data, bytes) else EncodedScan(data) for data in samples]

        def order() -> None:
            for position in range(first, first + _SAMPLES, _CHUNK):
                self._stream.order.indices(position, _CHUNK)

        def read() -> None:
            for index in indices:
                self._stream.source.read(index)

        def header() -> None:
            for data in samples:
                Encoded(data) if isinstance(data, bytes) else EncodedScan(data)

        def parameters() -> None:
            for encoded, key in zip(opened, keys, strict=True):
                self._makers["image"].plan(encoded.height, encoded.width, key)

        return {
            "order_us": _us(order), "read_us": _us(read), "header_us": _us(header), "parameters_us": _us(parameters),
        }  # fmt: skip


class Call(NamedTuple):
    """A call that was made."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


_FRESH = object()  # among a call's arguments: what the system call before it has read


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Notes all system calls and calls of kernels that the code below makes."""
    import simplejpeg
    import torch

    from prepserver.source import files, packed
    from prepserver.transform import resize
    from prepserver.transform.native import kernels

    calls: list[Call] = []
    last: list[Any] = [None]

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            fresh = (_FRESH, *arguments[1:]) if arguments and arguments[0] is last[0] else arguments
            calls.append(Call(function, fresh, options))
            return function(*arguments, **options)

        return noted

    def read_regular_file(path: bytes, **options: Any) -> bytes:
        last[0] = real_read(path, **options)
        calls.append(Call(_read_file, (path, len(last[0])), {}))
        return last[0]

    class Os:
        """The module `os` as `prepserver.source.packed` sees it here."""

        pread = staticmethod(noting(os.pread))

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

    real_read = files.read_regular_file
    compiled = kernels()
    places: list[tuple[Any, str, Any]] = [
        (files, "read_regular_file", read_regular_file),
        (packed, "os", Os()),
        (simplejpeg, "decode_jpeg", noting(simplejpeg.decode_jpeg)),
        (torch, "flip", noting(torch.flip)),
        (resize, "_KERNELS", {name: noting(kernel) for name, kernel in resize._KERNELS.items()}),
    ]
    if compiled is not None:
        places += [(compiled, name, noting(getattr(compiled, name))) for name in _COMPILED if hasattr(compiled, name)]
    before = [(where, name, getattr(where, name)) for where, name, _ in places]
    try:
        for where, name, noted in places:
            setattr(where, name, noted)
        yield calls
    finally:
        for where, name, real in before:
            setattr(where, name, real)


def again(calls: Sequence[Call]) -> None:
    """The same calls with the same arguments, and nothing else."""
    fresh: Any = b""
    for function, arguments, options in calls:
        try:
            if arguments[0] is _FRESH:
                function(fresh, *arguments[1:], **options)
            elif function is _read_file:
                fresh = function(*arguments)
            else:
                function(*arguments, **options)
        except ValueError:  # simplejpeg speaks of data behind the last row, as it did
            pass


def _read_file(path: bytes, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.fstat(descriptor)
    data = os.read(descriptor, size)
    os.close(descriptor)
    return data


def _nothing(*_arguments: Any, **_options: Any) -> None:
    return None


_SYSTEM_CALLS = (_read_file, os.pread)


def _us(what: Callable[..., None], *arguments: Any) -> float:
    """CPU microseconds a sample of a call that goes over one block."""
    began_ns = time.process_time_ns()
    what(*arguments)
    return (time.process_time_ns() - began_ns) / 1e3 / _SAMPLES


def sheets(result: dict[str, Any]) -> list[Sheet]:
    names = {
        "whole_us": "all of `fill`", "kernels_us": "decode and resize kernels", "system_us": "system calls",
        "python_us": "Python", "read_us": "of it: reading", "header_us": "opening, header",
        "parameters_us": "random parameters", "order_us": "order", "rest_us": "the rest: rows, calls, counters",
    }  # fmt: skip
    sheet = Sheet(
        "A worker's CPU time, microseconds a sample (median and min-max over blocks)",
        ("", *(cell["kind"] for cell in result["cells"])),
    )
    cells = [[_told(found) for found in cell["rounds"]] for cell in result["cells"]]
    for name, words in names.items():
        sheet.rows.append((words, *(spread([found[name] for found in cell], ".0f") for cell in cells)))
    share = Sheet("Python's share of a worker's time", ("", "found", "to reach", "reached"))
    for cell in result["cells"]:
        values = [found["python_share"] * 100 for found in cell["rounds"]]
        reached = "yes" if statistics.median(values) <= 100 * _TARGET else "no"
        share.rows.append((cell["kind"], f"{spread(values, '.1f')} %", f"< {100 * _TARGET:g} %", reached))
    return [sheet, share]


def _told(found: dict[str, float]) -> dict[str, float]:
    """With what follows from the figures measured."""
    kernels_us = found["bare_us"] - found["system_us"]
    python_us = found["whole_us"] - found["bare_us"]
    read_us = found["read_us"] - found["system_us"]
    known_us = read_us + found["header_us"] + found["parameters_us"] + found["order_us"]
    return {
        **found, "kernels_us": kernels_us, "python_us": python_us, "read_us": read_us, "rest_us": python_us - known_us,
    }  # fmt: skip


if __name__ == "__main__":
    main()
