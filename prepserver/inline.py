"""Rows without a daemon: the worker's code in the calling process, for the client's inline mode and `replay`.

Listings of sources are kept in the user's cache, like a daemon's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver import plugins
from prepserver.config import user_cache_dir
from prepserver.order import make_order
from prepserver.pipeline.batches import check_start
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import INDEX
from prepserver.pipeline.shard import WHOLE, Shard
from prepserver.pipeline.sources import SourceSpec
from prepserver.pipeline.spec import FILE
from prepserver.plugins import PluginError
from prepserver.protocol.messages import Shuffle
from prepserver.source import SourceError, build_index, open_source
from prepserver.source.errors import printable
from prepserver.source.opfiles import digests
from prepserver.telemetry.facts import Facts
from prepserver.telemetry.verdict import judge
from prepserver.worker.fill import BadRow, fill
from prepserver.worker.streams import Stream, Target

__all__ = ["InlineMaker", "PluginError", "Row", "SourceError", "class_names", "remake"]


def class_names(source: SourceSpec) -> tuple[str, list[str]]:
    """A source's content digest (see `IndexInfo`) and the names of its classes by label, if they have names.

    Raises:
        SourceError: The dataset is missing, empty or unreadable.
    """
    try:
        source = source.with_code(plugins.codes())
    except SpecError as e:
        raise SourceError(str(e)) from e
    index = build_index(source, user_cache_dir() / "index", lambda _samples: None)
    return index.content_digest, open_source(source, index.path).classes()


class InlineMaker:
    """Fills rows of one stream.

    Args:
        source: The dataset.
        pipeline: The ops.
        shuffle: The order.
        seed: Seed of order and augmentation.
        on_scanning: Called with the number of samples found while the source is listed.
        shard: The part of the samples to read.
        batch_rows: See `make_order`.
        load: Plug-ins of this process; see `prepserver.plugins.load`.

    Attributes:
        samples: Length of the source.
        num_classes: Distinct labels, 0 if unknown.
        digest: See `IndexInfo`.
        content_digest: See `IndexInfo`.
        code: See `Welcome`.

    Raises:
        SourceError: The dataset is missing, empty or unreadable, or a file that an op reads is.
        PluginError: A plug-in cannot be loaded.
        SpecError: One that the spec names is not loaded.
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
        self.code = pipeline.code
        index = build_index(source, user_cache_dir() / "index", on_scanning)
        self.samples = index.n
        self.num_classes = index.num_classes
        self.digest, self.content_digest = index.digest, index.content_digest
        order = make_order(shuffle, index.n, seed, shard, batch_rows, *source.arrangement)
        self._stream = Stream(open_source(source, index.path), order, seed)
        self._pipeline = pipeline

    @staticmethod
    def verdict(batches: int, images: int, waited_s: float, copied_s: float, own_s: float) -> dict[str, Any]:
        """What limits a loop that has spent so many seconds: see `prepserver.telemetry.verdict`."""
        whole_s = waited_s + copied_s + own_s or 1.0
        facts = Facts(
            span_s=whole_s, batches=batches, images_per_s=images / whole_s, waiting=waited_s / whole_s,
            copying=copied_s / whole_s, inline=True,
        )  # fmt: skip
        return judge(facts).to_plain()

    def check_start(self, first: int, epoch: int) -> None:
        """See `prepserver.pipeline.batches.check_start`."""
        check_start(self._stream.order, first, epoch)

    def fill(self, start: int, stop: int, arrays: Mapping[str, npt.NDArray[Any]]) -> list[tuple[int, int, str]]:
        """Fills the rows of positions [start, stop).

        Args:
            start: The first position.
            stop: One past the last.
            arrays: An array for each field, all of one length; position p goes to ``p % len``.

        Returns:
            (position, sample index, reason) of rows that hold a replacement.
        """
        target = Target.of(self._pipeline, _Arrays(arrays))
        self._stream.prefetch(start, stop - start, [target])
        bad = _fill(self._stream, target, start, stop - start)
        return [(b.position, b.index, b.reason) for b in bad]


@dataclass(frozen=True, slots=True)
class Row:
    """One row, made again.

    Attributes:
        fields: Its fields by name, as a ring stores them.
        index: Index of the sample in it, -1 for a row of zeros.
        path: The dataset's name for that sample.
        replaced: Path and reason of the expected sample, if that cannot be made; else empty.
    """

    fields: dict[str, npt.NDArray[Any]]
    index: int
    path: str
    replaced: list[str]


def remake(
    source: SourceSpec, index_path: Path, pipeline: Pipeline, shuffle: Shuffle, seed: int, samples: int, position: int,
    quarantined: AbstractSet[int], shard: Shard = WHOLE, batch_rows: int = 0,
) -> Row:  # fmt: skip
    """Makes the row of one position again, from the stream's own listing.

    Args:
        source: The dataset.
        index_path: Its listing, which never changes.
        pipeline: The ops.
        shuffle: The order.
        seed: Seed of order and augmentation.
        samples: Length of the source.
        position: Position of the row in its shard.
        quarantined: Indices of samples that are not tried.
        shard: The part of the samples that the job read.
        batch_rows: See `make_order`.

    Raises:
        SourceError: The listing is missing, or of another dataset.
    """
    opened = open_source(source, index_path)
    if len(opened) != samples:
        raise SourceError(f"the listing {index_path} has {len(opened)} samples, not {samples}")
    arrays = {field.name: np.zeros((1, *field.shape), field.dtype) for field in pipeline.fields}
    stream = Stream(
        opened, make_order(shuffle, samples, seed, shard, batch_rows, *source.arrangement), seed, quarantined
    )
    bad = _fill(stream, Target.of(pipeline, _Arrays(arrays)), position, 1)
    found = int(arrays[INDEX][0])
    path = printable(opened.name(found)) if found >= 0 else ""
    return Row({name: rows[0] for name, rows in arrays.items()}, found, path, [b.reason for b in bad])


def _fill(stream: Stream, target: Target, position: int, count: int) -> list[BadRow]:
    return fill(stream, [target], position, count, lambda _position, _index: None).bad


class _Arrays:
    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = arrays

    def row(self, field: str, position: int) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = self._arrays[field][position % len(self._arrays[field]), ...]
        return row

    def run(self, field: str, position: int, count: int) -> npt.NDArray[Any]:
        first = position % len(self._arrays[field])
        return self._arrays[field][first : first + count]

    def put(self, field: str, position: int, value: Any) -> None:
        self._arrays[field][position % len(self._arrays[field])] = value
