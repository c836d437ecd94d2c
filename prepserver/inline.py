"""Rows without a daemon: the worker's code in the calling process, for the client's inline mode and `replay`.

Like a daemon, it keeps listings of sources in the user's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver import plugins
from prepserver.audit.records import Rows
from prepserver.config import user_cache_dir
from prepserver.memory.ring import ArrayRows
from prepserver.order import make_order
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import INDEX
from prepserver.pipeline.shard import WHOLE, Shard
from prepserver.pipeline.sources import SourceSpec, source_from_wire
from prepserver.pipeline.spec import FILE
from prepserver.plugins import PluginError
from prepserver.protocol.messages import Shuffle
from prepserver.seeding import kept
from prepserver.source import SourceError, build_index, open_source
from prepserver.source.cache import discard
from prepserver.source.container import BrokenContainerError
from prepserver.source.errors import printable
from prepserver.source.opfiles import digests
from prepserver.telemetry.facts import Facts
from prepserver.telemetry.remedies import remedies_of
from prepserver.telemetry.verdict import judge
from prepserver.worker.fill import BadRow, LaneError, describe, fill
from prepserver.worker.streams import Lane, Stream

__all__ = ["InlineMaker", "LaneError", "PluginError", "Row", "SourceError", "remake"]


@contextmanager
def _discarding() -> Iterator[None]:
    """Removes a listing that turns out to be damaged."""
    try:
        yield
    except (BrokenContainerError, SourceError) as e:
        discard(e, _listings())
        if isinstance(e, SourceError):
            raise
        raise SourceError(describe(e)) from e


class InlineMaker:
    """Fills rows of one stream; `make_order` explains `batch_rows`.

    While the source is listed, `on_scanning` is called with the number of samples found. `load` names plug-ins of this
    process; see `prepserver.plugins.load`.

    Raises:
        SourceError: The dataset, or a file that an op reads, is missing, empty or unreadable.
        PluginError: A plug-in cannot be loaded.
        SpecError: A plug-in that the spec names is not loaded.
    """

    def __init__(
        self, source: SourceSpec, pipeline: Pipeline, shuffle: Shuffle, seed: int, on_scanning: Callable[[int], None],
        shard: Shard = WHOLE, batch_rows: int = 0, load: Sequence[str] = (),
    ) -> None:  # fmt: skip
        plugins.load(load)
        codes = dict(plugins.codes())
        for path, digest in zip(pipeline.files, digests(pipeline.files), strict=True):
            codes[FILE, path] = digest
        source, pipeline = source.with_code(codes), pipeline.with_code(codes)
        self.code = pipeline.code  # see `Welcome`
        self.listing = build_index(source, _listings(), on_scanning)
        self.order = make_order(shuffle, self.listing.samples, seed, shard, batch_rows, *source.arrangement)
        with _discarding():
            self._stream = Stream(open_source(source, self.listing.path), self.order, seed)
        self._pipeline = pipeline
        self._remedies = remedies_of(source, pipeline.apart)

    def verdict(
        self, batches: int, images: int, bad: int, waited_s: float, copied_s: float, own_s: float
    ) -> dict[str, Any]:
        """The verdict on a loop with these counts and seconds: see `prepserver.telemetry.verdict`."""
        whole_s = waited_s + copied_s + own_s or 1.0
        facts = Facts(
            span_s=whole_s, batches=batches, images_per_s=images / whole_s, waiting=waited_s / whole_s,
            copying=copied_s / whole_s, bad=bad / max(1, images), inline=True, remedies=self._remedies,
        )  # fmt: skip
        return judge(facts).to_plain()

    def fill(self, start: int, stop: int, arrays: Mapping[str, npt.NDArray[Any]]) -> list[tuple[int, int, str]]:
        """Fills the rows of positions [start, stop) in an array for each field; position p goes to ``p % len``.

        Returns:
            (position, sample index, reason) of rows that hold a replacement.

        Raises:
            LaneError: See `prepserver.worker.fill.fill`.
            SourceError: The listing is damaged.
        """
        lane = Lane.of(self._pipeline, ArrayRows(arrays, len(arrays[INDEX])))
        self._stream.prefetch(start, stop - start, [lane])
        with _discarding():
            bad = _fill(self._stream, lane, start, stop - start)
        return [(b.position, b.index, b.reason) for b in bad]


@dataclass(frozen=True, slots=True)
class Row:
    """One remade row."""

    fields: dict[str, npt.NDArray[Any]]  # its fields by name, as a ring stores them
    index: int  # index of the sample in it, -1 for a row of zeros
    path: str  # the dataset's name for that sample
    replaced: list[str]  # path of the expected sample and why it cannot be made; empty if it can


@_discarding()
def remake(rows: Rows, pipeline: Pipeline, position: int, quarantined: AbstractSet[int]) -> Row:
    """Remakes the row at one position of a job's shard, from the stream's own listing.

    Samples with `quarantined` indices are not tried.

    Raises:
        SourceError: The listing is missing, damaged, or of another dataset.
    """
    source = source_from_wire(rows.source)
    opened = open_source(source, Path(rows.index))
    if len(opened) != rows.n:
        raise SourceError(f"the listing {rows.index} has {len(opened)} samples, not {rows.n}")
    arrays = {field.name: np.zeros((1, *field.shape), field.dtype) for field in pipeline.fields}
    order = make_order(rows.shuffle, rows.n, rows.seed, rows.shard, rows.batch_rows, *source.arrangement)
    stream = Stream(opened, order, rows.seed, quarantined)
    bad = _fill(stream, Lane.of(pipeline, ArrayRows(arrays, 1)), position, 1)
    found = int(arrays[INDEX][0])
    path = printable(opened.name(found)) if found >= 0 else ""
    return Row({name: array[0] for name, array in arrays.items()}, found, path, [b.reason for b in bad])


def _fill(stream: Stream, lane: Lane, position: int, count: int) -> list[BadRow]:
    with kept() if plugins.loaded() else nullcontext():  # once, not around each call of a plug-in
        return fill(stream, [lane], position, count, lambda _position, _index: None).bad


def _listings() -> Path:
    return user_cache_dir() / "index"
