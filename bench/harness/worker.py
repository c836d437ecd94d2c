"""A worker without a daemon: the real function that fills rows, in this process, and a clock around its parts."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

PYTHON = "python"
"""What a `Clock` calls the time in which none of its functions ran."""

_CHUNK = 16
_SAMPLES = 20 * _CHUNK  # a block


class Worker:
    """What a worker holds: an open source, an order, a ring, row makers, a statistics page.

    Args:
        dataset: A list file, or a folder that ``prepserver pack`` has written.
        scratch: Holds the listing.
        ops: The pipeline; by default RandomResizedCrop(224) and RandomHorizontalFlip.
        views: Views of each sample.
        rows: Rows in the ring.
    """

    def __init__(
        self, dataset: Path, scratch: Path, ops: list[Any] | None = None, views: int = 1, rows: int = 512
    ) -> None:
        from prepserver.memory.ring import Ring
        from prepserver.memory.segment import create_segment
        from prepserver.order import make_order
        from prepserver.pipeline.ops import RandomHorizontalFlip, RandomResizedCrop
        from prepserver.pipeline.pipeline import Pipeline
        from prepserver.pipeline.sources import FileList, Packed
        from prepserver.protocol.layout import RingLayout, ring_fields
        from prepserver.source import build_index, open_source
        from prepserver.telemetry.page import StatsPage, create_page
        from prepserver.worker.streams import Lane, Stream

        spec = Packed(str(dataset)) if dataset.is_dir() else FileList(str(dataset))
        source = open_source(spec, build_index(spec, scratch / "index", lambda _found: None).path)
        self._stream = Stream(source, make_order("cyclic", len(source), 0), 0)
        pipeline = Pipeline.from_ops(ops or [RandomResizedCrop(224), RandomHorizontalFlip()], views)
        layout = RingLayout(rows, ring_fields(pipeline.fields))
        descriptor = create_segment("bench-ring", layout.nbytes)
        ring = Ring(descriptor, layout)
        os.close(descriptor)
        ring.mapping.populate()
        self._target = Lane.of(pipeline, ring)
        descriptor = create_page("bench-page")
        self._page = StatsPage(descriptor, writable=True)
        os.close(descriptor)

    def cached(self, form: str, path: Path | None = None) -> None:
        """Gives it a cache.

        Args:
            form: ``encoded`` or ``decoded``.
            path: Its file; None for memory.
        """
        from prepserver.cache.store import Book, Shape, Store, write_numbers
        from prepserver.memory.segment import create_segment

        shape = Shape(len(self._stream.source), 4 << 20)
        most_bytes = 1 << 30
        if path is None:
            descriptor = create_segment("bench-cache", shape.head_bytes + most_bytes)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.posix_fallocate(descriptor, 0, shape.head_bytes)
        write_numbers(descriptor, shape, bytes(32))
        Book(descriptor, shape).allow(most_bytes)
        store = Store(descriptor, shape, 0, path is not None)
        os.close(descriptor)
        if form == "decoded":
            self._target = self._target._replace(cache=store)
        else:
            self._stream.cache = store

    def fill(self, block: int, mark: Callable[[int, int], None] | None = None) -> None:
        """Fills the rows of one block of 320 positions, as a worker does."""
        for position in range(block * _SAMPLES, (block + 1) * _SAMPLES, _CHUNK):
            self.fill_rows(position, _CHUNK, mark)

    def fill_rows(self, position: int, count: int, mark: Callable[[int, int], None] | None = None) -> None:
        """Fills the rows of one chunk."""
        from prepserver.worker.fill import fill

        fill(self._stream, [self._target], position, count, mark or self._page.begin_sample)


@contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's garbage collector, as in a worker."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


Place = tuple[Any, str, str]
"""An object, the name of a function that is looked up in it, and what the function's time counts as."""


def calls() -> list[Place]:
    """All system calls and kernels on the way of a sample."""
    import simplejpeg
    import torch

    from prepserver.transform import native, resize

    places: list[Place] = [
        *((os, name, "system") for name in ("open", "fstat", "read", "pread", "close")),
        (simplejpeg, "decode_jpeg", "decode"),
        (torch, "flip", "resize"),
        *((resize._KERNELS, name, "resize") for name in resize._KERNELS),
    ]
    compiled = native.kernels()
    if compiled is not None:
        library = compiled._c
        names = ("crop", "crop_scan", "is_true", "region", "scan")
        places += [(library, f"prep_{name}", "decode") for name in names]
        places += [(library, f"prep_{name}", "resize") for name in ("resize", "turn")]
    return places


def timed(worker: Worker, block: int, more: Sequence[Place] = ()) -> dict[str, float]:
    """Fills one block with a clock around system calls and kernels, and around the functions in `more`.

    Returns:
        Microseconds per sample for each part; a part is what its functions take without those called inside them. Each
        figure is the median over the block's samples, so that one that was interrupted does not count for more.
    """
    places = [*calls(), *more]
    clock = _Clock()
    with _clocked(clock, places):
        worker.fill(block, clock.next_sample)
    clock.next_sample(0, 0)
    parts = dict.fromkeys([PYTHON, "system", "decode", "resize", *(part for *_, part in more)])
    return {part: statistics.median(sample.get(part, 0) for sample in clock.samples) / 1e3 for part in parts}


class _Clock:
    """Adds up, for each sample, the time that each part takes. A call inside another call counts for itself."""

    def __init__(self) -> None:
        self.samples: list[dict[str, int]] = []
        self._spent: dict[str, int] = {}
        self._stack = [PYTHON]
        self._since_ns = time.perf_counter_ns()

    def next_sample(self, _position: int, _index: int) -> None:
        """Stands in the place of a worker's mark."""
        self._turn()
        if self._spent:
            self.samples.append(self._spent)
        self._spent = {}

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def clocked(*arguments: Any, **options: Any) -> Any:
            self._turn()
            self._stack.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self._turn()
                self._stack.pop()

        return clocked

    def _turn(self) -> None:
        now_ns = time.perf_counter_ns()
        part = self._stack[-1]
        self._spent[part] = self._spent.get(part, 0) + now_ns - self._since_ns
        self._since_ns = time.perf_counter_ns()


@contextmanager
def _clocked(clock: _Clock, places: Sequence[Place]) -> Iterator[None]:
    """Puts the clock around these functions."""
    with ExitStack() as stack:
        for where, name, part in places:
            if isinstance(where, dict):
                stack.enter_context(mock.patch.dict(where, {name: clock.around(part, where[name])}))
            else:
                stack.enter_context(mock.patch.object(where, name, clock.around(part, getattr(where, name))))
        yield
